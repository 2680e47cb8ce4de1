"""Text to token ids and back, and the chat template of the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from omniflow_backend.compute.history import Message


class ChatTokenizer:
    """The tokenizer of a checkpoint directory. Nothing in it changes after construction: any thread may use it."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string((checkpoint / "chat_template.jinja").read_text(encoding="utf-8"))
        configuration = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        end = configuration["eos_token_id"]
        self.end_of_text = frozenset(end if isinstance(end, list) else [end])

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of ``text`` as it stands; names of special tokens in it become those tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation, up to where the assistant's answer begins."""
        listed = [{"role": message.role, "content": message.content} for message in messages]
        return self.encode(self._template.render(messages=listed, add_generation_prompt=True))
