"""The roles of pictures: reading files, and encoding pictures for the text model."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from memory_manager.client import MemoryManagerClient
from omniflow_backend import ActivationContext, BadInput, Bytes, Image, Many, Role, Tensor, interface
from omniflow_backend.compute.encoder_cache import EncoderCache
from omniflow_backend.compute.prefix import content_id
from omniflow_backend.deployment import memory_endpoint

Embeddings = Tensor("float32", (-1, -1))
Picture: TypeAlias = npt.NDArray[np.uint8]
_MODEL = "easy-vqa-tower-1"


@dataclass(frozen=True)
class PictureReaderOptions:
    """``max_pixels`` bounds a picture, ``max_pictures`` how many one call may bring."""

    max_pixels: int = 16_000_000
    max_pictures: int = 16


class PictureReader(Role):
    """Reads the picture files that a client sends."""

    def load(self) -> None:
        """Check the options. Raises ``TypeError`` for one that does not exist."""
        self._options = PictureReaderOptions(**self.options)

    @interface(inputs={"files": Many(Bytes)}, outputs={"pictures": Many(Image)})
    def decode(self, ctx: ActivationContext, files: Sequence[bytes]) -> dict[str, Any]:
        """Each file (PNG, JPEG, ... or its base64 text) as uint8 RGB ``[height, width, 3]``, in the order given.

        Raises ``BadInput`` for what is no picture, too large, or too many of them.
        """
        if len(files) > self._options.max_pictures:
            raise BadInput(f"{len(files)} pictures were sent; at most {self._options.max_pictures} are taken")
        limit = self._options.max_pixels
        return {"pictures": [read_picture(bytes(data), limit, number) for number, data in enumerate(files)]}


def read_picture(data: bytes, max_pixels: int, number: int = 0) -> Picture:
    """A picture file as uint8 RGB ``[height, width, 3]``. Raises ``BadInput`` that names the picture by ``number``."""
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    with contextlib.suppress(binascii.Error):
        data = base64.b64decode(b"".join(data.split()), validate=True)
    try:
        with Pillow.open(io.BytesIO(data)) as file:
            if file.width * file.height > max_pixels:
                raise BadInput(f"picture {number} has {file.width} x {file.height} pixels, {max_pixels} at most")
            return np.asarray(file.convert("RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise BadInput(f"picture {number} cannot be read: {error}") from None


class VisionEncoder(Role):
    """Makes embeddings of pictures; a picture that any process of the node has encoded before costs a look-up."""

    def load(self) -> None:
        """Load the tower, and connect to the deployment's MemoryManager if there is one."""
        import torch

        from omniflow_backend.models.vision.tower import load_tower

        torch.set_num_threads(1)
        self._tower = load_tower()
        endpoint = memory_endpoint()
        client = None if endpoint is None else MemoryManagerClient(endpoint, "vision_encoder")
        self.cache = EncoderCache(client, _MODEL)

    def close(self) -> None:
        """Disconnect."""
        self.cache.close()

    @interface(inputs={"pictures": Many(Image)}, outputs={"embeddings": Many(Embeddings)})
    def encode(self, ctx: ActivationContext, pictures: Sequence[Picture]) -> dict[str, Any]:
        """For each picture float32 ``[IMAGE_TOKENS, HIDDEN_SIZE]``: what stands for it in the text model's prompt."""
        identities = [
            content_id(picture.tobytes(), options=repr(picture.shape).encode(), model=_MODEL) for picture in pictures
        ]
        return {
            "embeddings": self.cache.encode(identities, lambda missing: self._encode([pictures[i] for i in missing]))
        }

    def _encode(self, pictures: Sequence[Picture]) -> list[npt.NDArray[np.float32]]:
        import torch

        from omniflow_backend.models.vision.tower import to_pixels

        with torch.inference_mode():
            # One by one: a picture's embeddings must not depend on what else is in the batch.
            return [self._tower(to_pixels(picture)[None])[0].numpy() for picture in pictures]
