"""Text to token ids and back, and the chat template of the checkpoint, whole or turn by turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_MARK = "\ufffc"
"""Stands for a content when the template is taken apart; no template has it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


class ChatTokenizer:
    """The tokenizer of a checkpoint directory. Nothing in it changes after construction: any thread may use it.

    A conversation's text is ``opening``, then for each turn ``question``, the answer and ``closing``.

    Raises:
        ValueError: for a template that writes a message differently when another follows: such a conversation cannot
            be continued where it ended.
    """

    def __init__(self, checkpoint: Path) -> None:
        vocabulary = (checkpoint / "tokenizer.json").read_bytes()
        template = (checkpoint / "chat_template.jinja").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_buffer(vocabulary)
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
        configuration = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        end = configuration["eos_token_id"]
        self.end_of_text = frozenset(end if isinstance(end, list) else [end])
        self.identity = hashlib.sha256(vocabulary + template.encode()).hexdigest()[:16]
        """The same for checkpoints whose positions mean the same text."""
        turn = [Message("user", _MARK), Message("assistant", _MARK)]
        said = self._render(turn)
        self.closing = self.encode(said.rpartition(_MARK)[2])
        """What ends an answer; the model may have written the beginning of it."""
        more = self._render([*turn, Message("user", _MARK)], answer=True)
        self._before_question, _, self._after_question = more.removeprefix(said).partition(_MARK)
        self.before_question = self.encode(self._before_question)
        """Where a turn begins."""
        whole = self.opening(_MARK) + self.question(_MARK) + _MARK + said.rpartition(_MARK)[2] + self.question(_MARK)
        system = Message("system", _MARK)
        if self._render([system, *turn, Message("user", _MARK)], answer=True) != whole:
            raise ValueError(f"the chat template in {checkpoint} does not continue a conversation where it ended")

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of ``text`` as it stands; names of special tokens in it become those tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation, up to where the assistant's answer begins."""
        return self.encode(self._render(messages, answer=True))

    def opening(self, system: str | None) -> str:
        """What comes before the first question; without a system message the template's own."""
        instructions = [Message("system", system)] if system else []
        text = self._render([*instructions, Message("user", _MARK)])
        return text[: text.rindex(self._before_question + _MARK)]

    def question(self, content: str) -> str:
        """A question, up to where its answer begins."""
        return self._before_question + content + self._after_question

    def _render(self, messages: Sequence[Message], *, answer: bool = False) -> str:
        listed = [{"role": message.role, "content": message.content} for message in messages]
        return str(self._template.render(messages=listed, add_generation_prompt=answer))
