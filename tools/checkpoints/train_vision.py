"""Trains the vision tower of `vision_chat` on easy-VQA: `python tools/checkpoints/train_vision.py`.

Two steps. The convolutions learn to tell shapes and colours; then the projector learns, through the frozen text model,
which embeddings make it answer questions about them, in conversations of several turns and pictures. Takes some
minutes on processors with bfloat16 matrix units, an hour on others.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.models.smollm2.checkpoint import prepare
from omniflow_backend.models.smollm2.tokenizer import ChatTokenizer
from omniflow_backend.models.vision.tower import IMAGE_TOKENS, WEIGHTS, VisionTower, to_pixels

SHAPES = ("circle", "rectangle", "triangle")
COLOURS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
_IMAGE_POSITION = -1
_NOT_LEARNED = -100


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    picture: int


@dataclass(frozen=True)
class Split:
    """`pixels` float32 `[pictures, 3, 64, 64]`; `questions[i]` are those about picture i."""

    pixels: torch.Tensor
    questions: list[list[Question]]

    def labels(self, words: Sequence[str]) -> torch.Tensor:
        """int64 `[pictures]`: which of `words` is an answer about the picture, `_NOT_LEARNED` where none is."""
        found = [
            next((words.index(question.answer) for question in asked if question.answer in words), _NOT_LEARNED)
            for asked in self.questions
        ]
        return torch.tensor(found)


def read(split: str) -> Split:
    import easy_vqa
    from PIL import Image

    directory = Path(easy_vqa.__file__).parent / "data" / split
    entries = json.loads((directory / "questions.json").read_text())
    count = max(entry[2] for entry in entries) + 1
    pictures = [np.asarray(Image.open(directory / "images" / f"{n}.png").convert("RGB")) for n in range(count)]
    questions: list[list[Question]] = [[] for _ in range(count)]
    for text, answer, picture in entries:
        questions[picture].append(Question(text, answer, picture))
    return Split(torch.stack([to_pixels(picture) for picture in pictures]), questions)


def learn_to_see(tower: VisionTower, data: Split, epochs: int) -> None:
    """Trains `tower.see` on the shapes and colours that answers name."""
    heads = nn.ModuleList([nn.Linear(tower.features[1].out_features, len(words)) for words in (SHAPES, COLOURS)])
    labels = [data.labels(SHAPES), data.labels(COLOURS)]
    optimizer = torch.optim.AdamW([*tower.parameters(), *heads.parameters()], lr=2e-3, weight_decay=1e-3)
    tower.train()
    batches = list(range(0, len(data.pixels), 64))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * len(batches))
    with tqdm(total=epochs * len(batches), desc="Learning to see", unit="step") as bar:
        for _ in range(epochs):
            order = torch.randperm(len(data.pixels))
            for start in batches:
                chosen = order[start : start + 64]
                pixels = data.pixels[chosen]
                if random.random() < 0.5:
                    pixels = pixels.flip(-1)
                features = tower.see(pixels)
                loss = sum(
                    nn.functional.cross_entropy(head(features), label[chosen], ignore_index=_NOT_LEARNED)
                    for head, label in zip(heads, labels, strict=True)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
                bar.set_postfix(loss=f"{float(loss):.3f}")
    tower.eval()


class Conversations:
    """Random conversations about pictures as token ids, pictures as runs of `_IMAGE_POSITION`."""

    def __init__(self, tokenizer: ChatTokenizer, data: Split, system: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._data = data
        self._system = system
        self._known: dict[str, tuple[int, ...]] = {}

    def draw(self, turns: int) -> tuple[list[int], list[int], list[int]]:
        """Token ids, what is to be learned at each, and the pictures in order."""
        tokens, learned, pictures = list(self._system), [_NOT_LEARNED] * len(self._system), []
        new_pictures = random.random() < 0.5
        asked: list[Question] = []
        for turn in range(turns):
            first = turn == 0 or new_pictures
            if first:
                pictures.append(random.randrange(len(self._data.questions)))
                # Yes and no are three quarters of all answers; words are what teaches to see.
                asked = random.sample(self._data.questions[pictures[-1]], len(self._data.questions[pictures[-1]]))
                words = [question for question in asked if question.answer not in ("yes", "no")]
                if words and random.random() < 0.4:
                    asked = [random.choice(words), *asked]
            question = asked.pop(0)
            text = question.text.capitalize() if random.random() < 0.5 else question.text
            prompt = [*self._ids("<|im_start|>user\n")]
            prompt += [_IMAGE_POSITION] * IMAGE_TOKENS if first else []
            prompt += [*self._ids(text), *self._ids("<|im_end|>\n<|im_start|>assistant\n")]
            answer = [*self._ids(question.answer), *self._ids("<|im_end|>")]
            newline = [*self._ids("\n")]
            tokens += prompt + answer + newline
            learned += [_NOT_LEARNED] * len(prompt) + answer + [_NOT_LEARNED] * len(newline)
            if not asked:
                break
        return tokens, learned, pictures

    def _ids(self, text: str) -> tuple[int, ...]:
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text)
        return self._known[text]


def embedded(tokens: torch.Tensor, pictures: torch.Tensor, embeddings: nn.Module, padding: int) -> torch.Tensor:
    """`[batch, length, hidden]`: token embeddings, and those of `pictures` where pictures are, in order."""
    where = tokens == _IMAGE_POSITION
    found: torch.Tensor = embeddings(tokens.masked_fill(where, padding))
    return found.masked_scatter(where[..., None], pictures.to(found.dtype))


def learn_to_answer(tower: VisionTower, data: Split, steps: int, batch: int, turns: int) -> None:
    """Trains `tower.project` through the frozen text model."""
    declare_torchvision_operators()
    from transformers import AutoModelForCausalLM

    checkpoint = prepare()
    tokenizer = ChatTokenizer(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval().requires_grad_(False)
    embeddings = model.get_input_embeddings()
    scale = float(embeddings.weight.float().std())
    with torch.no_grad():
        features = torch.cat([tower.see(part) for part in data.pixels.split(256)])
        tower.projector[-1].weight.mul_(scale)
        tower.projector[-1].bias.zero_()
    template = tokenizer.encode(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )
    conversations = Conversations(tokenizer, data, template)
    optimizer = torch.optim.AdamW(tower.projector.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    with tqdm(total=steps, desc="Learning to answer", unit="step") as bar:
        for _ in range(steps):
            drawn = [conversations.draw(turns) for _ in range(batch)]
            length = max(len(tokens) for tokens, _, _ in drawn)
            tokens = torch.zeros(batch, length, dtype=torch.int64)
            learned = torch.full((batch, length), _NOT_LEARNED)
            for row, (ids, wanted, _) in enumerate(drawn):
                tokens[row, : len(ids)] = torch.tensor(ids)
                learned[row, : len(ids)] = torch.tensor(wanted)
            seen = features[[picture for _, _, pictures in drawn for picture in pictures]]
            inputs = embedded(tokens, tower.project(seen), embeddings, 0)
            hidden = model.model(inputs_embeds=inputs).last_hidden_state[:, :-1]
            target = learned[:, 1:]
            wanted = target != _NOT_LEARNED
            logits = model.lm_head(hidden[wanted]).float()
            loss = nn.functional.cross_entropy(logits, target[wanted])
            right = (logits.argmax(-1) == target[wanted]).float().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(tower.projector.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.update()
            bar.set_postfix(loss=f"{float(loss):.3f}", right=f"{float(right):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    tower = VisionTower()
    data = read("train")
    learn_to_see(tower, data, arguments.epochs)
    learn_to_answer(tower, data, arguments.steps, arguments.batch, arguments.turns)
    from safetensors.torch import save_file

    save_file({name: value.half() for name, value in tower.state_dict().items()}, arguments.output)


if __name__ == "__main__":
    main()
