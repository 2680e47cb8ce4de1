"""Everything that knows SGLang. Written for sglang 0.5.23; nothing outside this package imports it.

Import ``engine`` and not SGLang's own modules first: ``environment.prepare`` has to run before any of them.
"""
