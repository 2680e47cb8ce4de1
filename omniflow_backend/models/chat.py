"""``chat``: text in, text out as it is generated. A client sends the new turn only; the server keeps what was said."""

from omniflow_backend import Int, Json, Text, Workflow
from omniflow_backend.models.smollm2.role import Llm

workflow = Workflow("chat")

reply = workflow.role("llm", Llm).chat(
    prompt=workflow.placeholder("prompt", Text),
    step=workflow.placeholder("step", Int, optional=True),
    system=workflow.placeholder("system", Text, optional=True),
    salt=workflow.placeholder("salt", Text, optional=True),
    sampling_parameters=workflow.placeholder("sampling_parameters", Json, optional=True),
)

workflow.output("text", reply.text, stream=True)
workflow.output("usage", reply.done)
