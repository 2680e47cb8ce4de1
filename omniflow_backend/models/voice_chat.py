"""``voice_chat``: a spoken question in, the answer out as text and as speech, sentence by sentence.

The LLM's yields carry text for the caller; those that also complete a sentence activate the talker, so speech starts
before the answer has ended.
Streams keep generation order, however long a sentence takes to speak.
"""

from omniflow_backend import Bytes, Int, Json, Text, Workflow
from omniflow_backend.models.smollm2.role import Llm
from omniflow_backend.models.speech.roles import Asr, AudioReader, Talker, Vocoder

workflow = Workflow("voice_chat")

audio = workflow.role("audio_reader", AudioReader).decode(data=workflow.placeholder("audio", Bytes))
heard = workflow.role("asr", Asr).transcribe(waveform=audio.waveform, sample_rate=audio.sample_rate)
reply = workflow.role("llm", Llm).chat(
    prompt=heard.text,
    step=workflow.placeholder("step", Int, optional=True),
    system=workflow.placeholder("system", Text, optional=True),
    salt=workflow.placeholder("salt", Text, optional=True),
    sampling_parameters=workflow.placeholder("sampling_parameters", Json, optional=True),
)
spoken = workflow.role("talker", Talker).speak(text=reply.sentence)
speech = workflow.role("vocoder", Vocoder).synthesize(frames=spoken.frames, sample_rate=spoken.sample_rate)

workflow.output("heard", heard.text, stream=True)
workflow.output("text", reply.text, stream=True)
workflow.output("speech", speech.audio, stream=True)
workflow.output("sample_rate", speech.sample_rate, stream=True)
workflow.output("usage", reply.done)
