"""Picture files that clients send become pixels, or an error that names the picture."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from omniflow_backend import BadInput
from omniflow_backend.models.vision.roles import PictureReader, read_picture
from tests.vision.conftest import drawn, encoded, pixels

LIMIT = 1_000_000


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_a_file_without_loss_gives_the_very_pixels(kind: str) -> None:
    picture = drawn("blue")
    assert np.array_equal(read_picture(encoded(picture, kind), LIMIT), pixels(picture))


def test_base64_text_is_read_like_the_file_it_encodes() -> None:
    data = encoded(drawn("red"))
    assert np.array_equal(read_picture(base64.encodebytes(data), LIMIT), read_picture(data, LIMIT))


def test_transparent_and_gray_pictures_become_rgb() -> None:
    for mode in ("RGBA", "L", "P"):
        assert read_picture(encoded(drawn("red").convert(mode)), LIMIT).shape == (64, 64, 3)


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", encoded(drawn("red"))[:60], b"\x89PNG\r\n\x1a\n" + bytes(40)],
    ids=["empty", "text", "truncated", "header only"],
)
def test_what_is_no_picture_is_refused_by_its_number(data: bytes) -> None:
    with pytest.raises(BadInput, match="picture 3 cannot be read"):
        read_picture(data, LIMIT, 3)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(BadInput, match="64 x 64 pixels, 4095 at most"):
        read_picture(encoded(drawn("red")), 64 * 64 - 1)


def test_every_picture_of_a_call_is_read_in_order_and_none_is_none() -> None:
    reader = PictureReader(max_pictures=3)
    reader.load()
    colours = ["red", "blue", "green"]
    read = reader.decode(None, [encoded(drawn(colour)) for colour in colours])["pictures"]
    assert [tuple(picture[32, 32]) for picture in read] == [(255, 0, 0), (0, 0, 255), (0, 128, 0)]
    assert reader.decode(None, []) == {"pictures": []}
    with pytest.raises(BadInput, match="4 pictures were sent; at most 3"):
        reader.decode(None, [b""] * 4)
