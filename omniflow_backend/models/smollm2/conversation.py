"""A conversation as positions: what a new turn adds to a history, and what of a long history still fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from omniflow_backend.compute.prefix import EmbeddedSpan, content_id
from omniflow_backend.compute.sessions.history import History, NewPositions
from omniflow_backend.errors import BadInput
from omniflow_backend.models.smollm2.tokenizer import ChatTokenizer

IMAGE = "<image>"
_PLACEHOLDER_TOKEN = 0
_PARTS_OF_ROOM = 4

Embeddings = npt.NDArray[np.float32]


class Conversation:
    """Turns in the form of one checkpoint's chat template.

    The positions of a history and of its next turn are those of the whole conversation in the template, but that an
    answer keeps the tokens which the model generated.

    Args:
        hidden_size: of the model's embeddings.
    """

    def __init__(self, tokenizer: ChatTokenizer, hidden_size: int) -> None:
        self._tokenizer = tokenizer
        self._hidden_size = hidden_size

    def question(self, history: History, prompt: str, system: str | None, images: Sequence[Embeddings]) -> NewPositions:
        """What the turn adds before its answer.

        Args:
            system: of the whole conversation; a later turn may repeat it.
            images: float32 ``[positions, hidden]`` each, for the ``<image>`` in the prompt, in order; where the prompt
                has none, before it. Without images ``<image>`` is text.

        Raises:
            BadInput: for another system message than the conversation has, or images that do not fit the prompt.
        """
        if not history:
            before = self._tokenizer.encode(self._tokenizer.opening(system))
        else:
            self._check_system(history, system)
            before = self._rest_of_closing(history)
        if images and IMAGE not in prompt:
            prompt = IMAGE * len(images) + prompt
        text = self._tokenizer.question(prompt)
        if not images:
            return NewPositions((*before, *self._tokenizer.encode(text)))
        return self._with_images(before, text.split(IMAGE), images)

    def fitting(self, history: History, room: int) -> list[range]:
        """The stretches of a history that a prompt has with so much room for it: all, or its opening and newest turns.

        What is left out grows in steps, so that prompts of following turns mostly begin alike.
        """
        if len(history) <= room:
            return [range(len(history))]
        opening = self._find_question(history, 0, len(history))
        if opening > room:
            return []
        step = max(1, room // _PARTS_OF_ROOM)
        left_out = -(-(len(history) - room) // step) * step
        cut = next((start for start in history.turn_starts[1:] if start - opening >= left_out), len(history))
        return [
            range(opening),
            range(self._find_question(history, cut, cut + len(self._tokenizer.closing)), len(history)),
        ]

    def _check_system(self, history: History, system: str | None) -> None:
        if system is None:
            return
        opening = self._tokenizer.encode(self._tokenizer.opening(system))
        if tuple(history.tokens_within(0, len(opening))) != opening[: len(history)]:
            raise BadInput(
                "input 'system' is another one than the session began with; leave it out, or begin again with step=0"
            )

    def _rest_of_closing(self, history: History) -> tuple[int, ...]:
        closing = self._tokenizer.closing
        for said in range(len(closing), 0, -1):
            if tuple(history.tokens_within(len(history) - said, len(history))) == closing[:said]:
                return closing[said:]
        return closing

    def _find_question(self, history: History, start: int, stop: int) -> int:
        """Where the first message of a user begins in ``start`` to ``stop``; ``start`` if none does."""
        sought = list(self._tokenizer.before_question)
        token_ids = history.tokens_within(start, stop + len(sought))
        for offset in range(len(token_ids) - len(sought) + 1):
            if token_ids[offset : offset + len(sought)] == sought:
                return start + offset
        return start

    def _with_images(self, before: Sequence[int], texts: Sequence[str], images: Sequence[Embeddings]) -> NewPositions:
        if len(texts) - 1 != len(images):
            raise BadInput(f"input 'prompt' has {len(texts) - 1} times {IMAGE!r}, but {len(images)} images were given")
        token_ids = [*before, *self._tokenizer.encode(texts[0])]
        spans = []
        for image, text in zip(images, texts[1:], strict=True):
            if image.shape[1] != self._hidden_size or not len(image):
                raise BadInput(
                    f"input 'images' has one of shape {list(image.shape)}; it must be [positions, {self._hidden_size}]"
                )
            identity = content_id(np.ascontiguousarray(image).data.cast("B"), model="embeddings")
            spans.append(EmbeddedSpan(len(token_ids), identity, np.array(image)))
            token_ids += [_PLACEHOLDER_TOKEN] * len(image)
            token_ids += self._tokenizer.encode(text)
        return NewPositions(tuple(token_ids), tuple(spans))
