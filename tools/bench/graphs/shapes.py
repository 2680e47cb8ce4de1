"""Thirty-nine workflow graphs shaped after real models, from 3 to 21 scheduling edges (paper, figure 12)."""

from __future__ import annotations

from collections.abc import Callable

from bench.graphs.builder import Graph

from omniflow_backend import Workflow

Shape = Callable[[Graph], Workflow]
SHAPES: dict[str, Shape] = {}


def shape(build: Shape) -> Shape:
    """Register a graph under its function's name."""
    SHAPES[build.__name__] = build
    return build


def build_all() -> dict[str, Workflow]:
    """Every graph, by name."""
    return {name: build(Graph(name)) for name, build in SHAPES.items()}


# --- language -------------------------------------------------------------------------------------------------------


@shape
def text_embedding(g: Graph) -> Workflow:
    """Tokenizer, encoder."""
    return g.finish(g.node("step", x=g.node("step", x=g.x).y).y)


@shape
def chat(g: Graph) -> Workflow:
    """Tokenizer, LLM with session, detokenizer."""
    llm = g.node("turn", x=g.node("step", x=g.x).y)
    return g.finish(g.node("step", x=llm.y).y)


@shape
def chat_stream(g: Graph) -> Workflow:
    """An LLM whose pieces are detokenized one by one."""
    return g.finish(g.node("step", x=g.node("stream", x=g.x).y).y, stream=True)


@shape
def guarded_chat(g: Graph) -> Workflow:
    """A safety check beside the prompt's embedding; both before the LLM."""
    prompt = g.node("step", x=g.x)
    checked, embedded = g.node("step", x=prompt.y), g.node("step", x=prompt.y)
    return g.finish(g.node("turn", x=g.node("pair", a=embedded.y, b=checked.y).y).y)


@shape
def speculative(g: Graph) -> Workflow:
    """Draft and verify, again until accepted."""
    verify = g.node("loop")
    verify.bind(x=g.node("step", x=g.x).y)
    verify.bind(x=g.node("advance", x=verify.again).y)
    return g.finish(verify.answer)


@shape
def retrieval(g: Graph) -> Workflow:
    """Query embedding, two indexes, reranker, LLM."""
    query = g.node("step", x=g.x)
    dense, sparse = g.node("step", x=query.y), g.node("step", x=query.y)
    ranked = g.node("pair", a=dense.y, b=sparse.y)
    return g.finish(g.node("turn", x=g.node("step", x=ranked.y).y).y)


@shape
def mixture_of_judges(g: Graph) -> Workflow:
    """Three models answer, one decides."""
    prompt = g.node("step", x=g.x)
    answers = [g.node("turn", x=prompt.y) for _ in range(3)]
    return g.finish(g.node("triple", a=answers[0].y, b=answers[1].y, c=answers[2].y).y)


# --- speech ---------------------------------------------------------------------------------------------------------


@shape
def recognition_stream(g: Graph) -> Workflow:
    """Voice activity cuts segments; each is recognised; text comes in order."""
    segments = g.node("parse", x=g.x)
    encoded = g.node("step", x=segments.frame)
    return g.finish(g.node("step", x=encoded.y).y, stream=True)


@shape
def diarized_recognition(g: Graph) -> Workflow:
    """Each segment's words and speaker, joined per segment."""
    segments = g.node("parse", x=g.x)
    text, speaker = g.node("step", x=segments.frame), g.node("step", x=segments.frame)
    return g.finish(g.node("pair", a=text.y, b=speaker.y).y, stream=True)


@shape
def synthesis(g: Graph) -> Workflow:
    """Text front end, acoustic model, vocoder."""
    spoken = g.node("step", x=g.node("step", x=g.x).y)
    return g.finish(g.node("step", x=spoken.y).y)


@shape
def synthesis_stream(g: Graph) -> Workflow:
    """A codec talker whose frames are decoded as they come."""
    return g.finish(g.node("step", x=g.node("stream", x=g.node("step", x=g.x).y).y).y, stream=True)


@shape
def voice_cloning(g: Graph) -> Workflow:
    """A speaker's embedding and the text's codes meet in the acoustic model."""
    reader = g.node("step", x=g.x)
    speaker, codes = g.node("step", x=reader.y), g.node("step", x=reader.y)
    return g.finish(g.node("step", x=g.node("pair", a=codes.y, b=speaker.y).y).y)


@shape
def speech_translation(g: Graph) -> Workflow:
    """Recognise, translate, speak."""
    value = g.x
    for interface in ("step", "step", "turn", "step", "step"):
        value = g.node(interface, x=value).y
    return g.finish(value)


@shape
def voice_assistant(g: Graph) -> Workflow:
    """voice_chat: reader, recogniser, LLM with a stream of text, talker and vocoder per sentence."""
    heard = g.node("step", x=g.node("step", x=g.x).y)
    llm = g.node("stream", x=heard.y)
    spoken = g.node("step", x=g.node("step", x=llm.sentence).y)
    return g.finish(llm.y, spoken.y, stream=True)


# --- vision and language --------------------------------------------------------------------------------------------


@shape
def captioning(g: Graph) -> Workflow:
    """Image encoder, projector, LLM."""
    value = g.node("step", x=g.node("step", x=g.x).y)
    return g.finish(g.node("turn", x=value.y).y)


@shape
def visual_question(g: Graph) -> Workflow:
    """Image and question side by side, then the LLM."""
    parsed = g.node("step", x=g.x)
    image, text = g.node("step", x=parsed.y), g.node("step", x=parsed.y)
    return g.finish(g.node("turn", x=g.node("pair", a=text.y, b=image.y).y).y)


@shape
def many_images(g: Graph) -> Workflow:
    """N images: encoded each, gathered with the text, answered once."""
    parsed = g.node("parse", x=g.node("step", x=g.x).y)
    image, text = g.node("step", x=parsed.frame), g.node("step", x=parsed.text)
    merged = g.node("collect", xs=image.y, activate_by_count={"xs": parsed.count})
    return g.finish(g.node("turn", x=g.node("pair", a=text.y, b=merged.y).y).y)


@shape
def tiled_image(g: Graph) -> Workflow:
    """Tiles of one image through two encoders, joined per tile, all gathered."""
    tiles = g.node("parse", x=g.x)
    coarse, fine = g.node("step", x=tiles.frame), g.node("step", x=tiles.frame)
    joined = g.node("pair", a=coarse.y, b=fine.y)
    merged = g.node("collect", xs=joined.y, activate_by_count={"xs": tiles.count})
    return g.finish(g.node("turn", x=merged.y).y)


@shape
def document_reading(g: Graph) -> Workflow:
    """Detect lines, recognise each, read in order."""
    lines = g.node("parse", x=g.node("step", x=g.x).y)
    text, layout = g.node("step", x=lines.frame), g.node("step", x=lines.frame)
    return g.finish(g.node("step", x=g.node("pair", a=text.y, b=layout.y).y).y, stream=True)


@shape
def grounding(g: Graph) -> Workflow:
    """An image either is searched for text or for objects; the answer takes what came."""
    choice = g.node("route", x=g.node("step", x=g.x).y)
    text, objects = g.node("step", x=choice.left), g.node("step", x=choice.right)
    answer = g.node("turn")
    answer.bind(x=text.y)
    answer.bind(x=objects.y)
    return g.finish(answer.y)


@shape
def video_understanding(g: Graph) -> Workflow:
    """Frames and sound apart, frames gathered, the LLM streams."""
    source = g.node("step", x=g.x)
    frames, sound = g.node("parse", x=source.y), g.node("step", x=source.y)
    image = g.node("step", x=frames.frame)
    merged = g.node("gather", xs=image.y, a=g.node("step", x=sound.y).y)
    return g.finish(g.node("stream", x=merged.y).y, stream=True)


# --- any to any -----------------------------------------------------------------------------------------------------


@shape
def thinker_talker(g: Graph) -> Workflow:
    """Thinker's pieces go to the caller and to the talker, whose codes are decoded in order."""
    thinker = g.node("stream", x=g.node("step", x=g.x).y)
    talker = g.node("step", x=thinker.y)
    return g.finish(thinker.y, g.node("step", x=talker.y).y, stream=True)


@shape
def omni(g: Graph) -> Workflow:
    """Image, sound and text encoders before the thinker; talker and code2wav after it."""
    parsed = g.node("step", x=g.x)
    image, sound, text = (g.node("step", x=parsed.y) for _ in range(3))
    thinker = g.node("stream", x=g.node("triple", a=image.y, b=sound.y, c=text.y).y)
    wave = g.node("step", x=g.node("step", x=thinker.y).y)
    return g.finish(thinker.y, wave.y, stream=True)


@shape
def omni_with_check(g: Graph) -> Workflow:
    """The omni model, each spoken piece checked beside its decoding."""
    parsed = g.node("step", x=g.x)
    image, sound, text = (g.node("step", x=parsed.y) for _ in range(3))
    thinker = g.node("stream", x=g.node("triple", a=image.y, b=sound.y, c=text.y).y)
    talker = g.node("step", x=thinker.y)
    wave, check = g.node("step", x=talker.y), g.node("step", x=talker.y)
    return g.finish(thinker.y, g.node("pair", a=wave.y, b=check.y).y, stream=True)


@shape
def discrete_tokens(g: Graph) -> Workflow:
    """All modalities as tokens of one model, routed to their decoder."""
    model = g.node("route", x=g.node("turn", x=g.node("step", x=g.x).y).y)
    return g.finish(g.node("step", x=model.left).y, g.node("step", x=model.right).y)


# --- image and video generation -------------------------------------------------------------------------------------


@shape
def text_to_image(g: Graph) -> Workflow:
    """Text encoder, diffusion, decoder."""
    value = g.node("step", x=g.node("step", x=g.x).y)
    return g.finish(g.node("step", x=g.node("step", x=value.y).y).y)


@shape
def two_text_encoders(g: Graph) -> Workflow:
    """Two encoders condition the diffusion."""
    prompt = g.node("step", x=g.x)
    short, long = g.node("step", x=prompt.y), g.node("step", x=prompt.y)
    return g.finish(g.node("step", x=g.node("pair", a=short.y, b=long.y).y).y)


@shape
def image_edit(g: Graph) -> Workflow:
    """Text, vision and latent encoders of one image condition the diffusion."""
    request = g.node("step", x=g.x)
    text, vision, latent = (g.node("step", x=request.y) for _ in range(3))
    drawn = g.node("triple", a=text.y, b=vision.y, c=latent.y)
    return g.finish(g.node("step", x=g.node("step", x=drawn.y).y).y)


@shape
def denoising_loop(g: Graph) -> Workflow:
    """A sampler outside the model: step by step until done."""
    sampler = g.node("loop")
    sampler.bind(x=g.node("step", x=g.node("step", x=g.x).y).y)
    sampler.bind(x=g.node("advance", x=sampler.again).y)
    return g.finish(g.node("step", x=sampler.answer).y)


@shape
def guided_loop(g: Graph) -> Workflow:
    """Conditional and unconditional halves of each step, joined per turn."""
    sampler = g.node("loop")
    sampler.bind(x=g.node("step", x=g.x).y)
    with_text, without = g.node("advance", x=sampler.again), g.node("step", x=sampler.again)
    sampler.bind(x=g.node("pair", a=with_text.y, b=without.y).y)
    return g.finish(g.node("step", x=sampler.answer).y)


@shape
def unified_generation(g: Graph) -> Workflow:
    """The paper's figure 4: frames to two encoders, joined for the LLM; counts gather conditions for the diffusion."""
    parsed = g.node("parse", x=g.node("step", x=g.x).y)
    vit, vae = g.node("step", x=parsed.frame), g.node("step", x=parsed.frame)
    llm = g.node("turn")
    llm.bind(x=g.node("pair", a=vit.y, b=vae.y).y)
    llm.bind(x=parsed.text)
    drawn = g.node("collect", xs=vit.y, zs=vae.y, activate_by_count={"xs": parsed.count, "zs": parsed.count})
    return g.finish(llm.y, g.node("step", x=drawn.y).y)


@shape
def unified_with_check(g: Graph) -> Workflow:
    """Unified generation whose image is decoded and checked side by side."""
    parsed = g.node("parse", x=g.node("step", x=g.x).y)
    vit, vae = g.node("step", x=parsed.frame), g.node("step", x=parsed.frame)
    llm = g.node("turn")
    llm.bind(x=g.node("pair", a=vit.y, b=vae.y).y)
    llm.bind(x=parsed.text)
    drawn = g.node("collect", xs=vit.y, zs=vae.y, activate_by_count={"xs": parsed.count, "zs": parsed.count})
    latent = g.node("step", x=drawn.y)
    image, check = g.node("step", x=latent.y), g.node("step", x=latent.y)
    return g.finish(llm.y, g.node("pair", a=image.y, b=check.y).y)


@shape
def text_to_video(g: Graph) -> Workflow:
    """Two encoders, diffusion, decoding of chunks in order, super-resolution."""
    prompt = g.node("step", x=g.x)
    text, image = g.node("step", x=prompt.y), g.node("step", x=prompt.y)
    chunks = g.node("stream", x=g.node("pair", a=text.y, b=image.y).y)
    return g.finish(g.node("step", x=g.node("step", x=chunks.y).y).y, stream=True)


@shape
def video_with_sound(g: Graph) -> Workflow:
    """Chunks of picture and of sound, joined per chunk."""
    prompt = g.node("step", x=g.x)
    chunks = g.node("stream", x=g.node("step", x=prompt.y).y)
    picture, sound = g.node("step", x=chunks.y), g.node("step", x=chunks.y)
    muxed = g.node("pair", a=g.node("step", x=picture.y).y, b=g.node("step", x=sound.y).y)
    return g.finish(g.node("step", x=muxed.y).y, stream=True)


# --- agents, policies, world models ---------------------------------------------------------------------------------


@shape
def agent_with_tool(g: Graph) -> Workflow:
    """Think, use the tool, think again, answer."""
    think = g.node("loop")
    think.bind(x=g.x)
    think.bind(x=g.node("advance", x=think.again).y)
    return g.finish(g.node("step", x=think.answer).y)


@shape
def agent_with_two_tools(g: Graph) -> Workflow:
    """Two tools side by side in every turn, their results joined per turn."""
    think = g.node("loop")
    think.bind(x=g.node("step", x=g.x).y)
    search, code = g.node("advance", x=think.again), g.node("step", x=think.again)
    think.bind(x=g.node("pair", a=g.node("step", x=search.y).y, b=code.y).y)
    return g.finish(g.node("step", x=think.answer).y)


@shape
def action_policy(g: Graph) -> Workflow:
    """Camera, state and instruction; a vision-language prefix; an action expert streams a chunk of actions."""
    observed = g.node("step", x=g.x)
    camera, state, words = (g.node("step", x=observed.y) for _ in range(3))
    prefix = g.node("triple", a=camera.y, b=state.y, c=words.y)
    return g.finish(g.node("step", x=g.node("stream", x=prefix.y).y).y, stream=True)


@shape
def world_model(g: Graph) -> Workflow:
    """Encode, then predict with the action fed back, until the horizon; decode."""
    predict = g.node("loop")
    predict.bind(x=g.node("step", x=g.node("step", x=g.x).y).y)
    action, state = g.node("advance", x=predict.again), g.node("step", x=predict.again)
    predict.bind(x=g.node("pair", a=action.y, b=state.y).y)
    return g.finish(g.node("step", x=g.node("step", x=predict.answer).y).y)


@shape
def everything(g: Graph) -> Workflow:
    """Parser, three encoders per frame, a session-ordered LLM, counts, diffusion, two decoders, a check."""
    parsed = g.node("parse", x=g.node("step", x=g.x).y)
    vit, vae, depth = (g.node("step", x=parsed.frame) for _ in range(3))
    llm = g.node("turn")
    llm.bind(x=g.node("triple", a=vit.y, b=vae.y, c=depth.y).y)
    llm.bind(x=parsed.text)
    drawn = g.node("collect", xs=vit.y, zs=vae.y, activate_by_count={"xs": parsed.count, "zs": parsed.count})
    latent = g.node("step", x=drawn.y)
    image, check = g.node("step", x=latent.y), g.node("step", x=latent.y)
    return g.finish(llm.y, g.node("pair", a=image.y, b=check.y).y)
