"""The trained tower: pictures of any size in, embeddings that tell them apart out."""

from __future__ import annotations

import numpy as np
import pytest

from omniflow_backend.models.vision.roles import VisionEncoder
from omniflow_backend.models.vision.tower import HIDDEN_SIZE, IMAGE_TOKENS
from tests.vision.conftest import drawn, pixels


@pytest.fixture(scope="module")
def encoder() -> VisionEncoder:
    role = VisionEncoder()
    role.load()
    return role


def embeddings(encoder: VisionEncoder, colour: str, side: int = 64) -> np.ndarray:
    return encoder.encode(None, [pixels(drawn(colour, side))])["embeddings"][0]


def test_a_picture_becomes_rows_of_the_text_models_width_always_the_same(encoder: VisionEncoder) -> None:
    found = embeddings(encoder, "red")
    assert (found.shape, found.dtype) == ((IMAGE_TOKENS, HIDDEN_SIZE), np.float32)
    assert np.array_equal(found, embeddings(encoder, "red"))


def test_the_same_drawing_in_another_size_is_nearer_than_another_colour(encoder: VisionEncoder) -> None:
    small, large, other = (
        embeddings(encoder, colour, side) for colour, side in (("red", 64), ("red", 256), ("blue", 64))
    )
    assert np.linalg.norm(small - large) < 0.5 * np.linalg.norm(small - other)


def test_pictures_are_encoded_in_order_each_as_if_alone_and_none_gives_none(encoder: VisionEncoder) -> None:
    colours = ["red", "blue", "red"]
    found = encoder.encode(None, [pixels(drawn(colour)) for colour in colours])["embeddings"]
    assert all(np.array_equal(one, embeddings(encoder, colour)) for one, colour in zip(found, colours, strict=True))
    assert encoder.encode(None, []) == {"embeddings": []}
