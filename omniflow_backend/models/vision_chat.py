"""``vision_chat``: pictures and a question in, the answer out as it is generated; sessions kept on the server.

Each picture becomes embeddings that stand in the prompt where ``<image>`` is, or before the question. A later
turn may bring more pictures, or none: earlier ones are remembered.
"""

from omniflow_backend import Bytes, Int, Json, Many, Text, Workflow
from omniflow_backend.models.smollm2.role import Llm
from omniflow_backend.models.vision.roles import PictureReader, VisionEncoder

workflow = Workflow("vision_chat")

pictures = workflow.role("picture_reader", PictureReader).decode(
    files=workflow.placeholder("images", Many(Bytes), optional=True)
)
seen = workflow.role("vision_encoder", VisionEncoder).encode(pictures=pictures.pictures)
reply = workflow.role("llm", Llm).chat_about_images(
    prompt=workflow.placeholder("prompt", Text),
    images=seen.embeddings,
    step=workflow.placeholder("step", Int, optional=True),
    system=workflow.placeholder("system", Text, optional=True),
    salt=workflow.placeholder("salt", Text, optional=True),
    sampling_parameters=workflow.placeholder("sampling_parameters", Json, optional=True),
)

workflow.output("text", reply.text, stream=True)
workflow.output("usage", reply.done)
