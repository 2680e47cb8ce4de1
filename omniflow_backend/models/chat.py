"""``chat``: text in, text out as it is generated, sessions kept on the server."""

from omniflow_backend import Json, Text, Workflow
from omniflow_backend.models.smollm2.role import Llm

workflow = Workflow("chat")

reply = workflow.role("llm", Llm).chat(
    prompt=workflow.placeholder("prompt", Text),
    system=workflow.placeholder("system", Text, optional=True),
    sampling_parameters=workflow.placeholder("sampling_parameters", Json, optional=True),
)

workflow.output("text", reply.text, stream=True)
workflow.output("usage", reply.done)
