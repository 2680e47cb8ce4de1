"""An independent, slow and obvious account of what a call must do, to hold the runtime against.

``facts`` answers graph questions by brute force, ``yields`` decides what roles do, ``semantics`` grows the whole tree
of a call from them by the rules in ``order`` and ``count_join``. ``schedule`` runs the real runtime with events in
random order, ``judge`` compares, and ``cases`` goes from a seed to a verdict.
"""
