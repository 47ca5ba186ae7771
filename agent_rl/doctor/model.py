"""Checks of the model and its tokenizer."""

from __future__ import annotations

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.doctor.subject import Subject

SAMPLES = (
    "```python\nimport math\nfor i in range(3):\n    print(i * 2.5)\n```",
    "The answer is \\boxed{\\frac{1}{2}}.",
    "\tTab,  two spaces, and a newline at the end\n",
)
"""Texts that must survive the tokenizer, since code and answers are read from decoded ids."""


def check_tokenizer(subject: Subject) -> list[Finding]:
    """Whether text comes back from the tokenizer as it went in."""
    tokenizer = subject.tokenizer
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if back != text:
            return [
                fault(
                    "tokenizer",
                    f"text does not survive the tokenizer: {text[:40]!r} comes back as {back[:40]!r}, so programs and "
                    "answers would be read wrongly",
                    "use the tokenizer that the model was trained with, or another model",
                )
            ]
    vocabulary = getattr(subject.model_config.get_text_config(decoder=True), "vocab_size", None)
    if vocabulary is not None and len(tokenizer) > vocabulary:
        return [
            fault(
                "tokenizer",
                f"the tokenizer has {len(tokenizer)} tokens and the model's embedding {vocabulary}: they belong to "
                "different models, or tokens were added without resizing the embedding",
                "use the model's own tokenizer, or resize_token_embeddings",
            )
        ]
    return [ok("tokenizer", f"{len(tokenizer)} tokens; code, boxes and white space survive it")]


def check_control_tokens(subject: Subject) -> list[Finding]:
    """Whether a question or a program's output can hold a control token."""
    from agent_rl.tir.observation import text_encoder

    tokenizer = subject.tokenizer
    encode = text_encoder(tokenizer)
    added = {str(t): i for t, i in tokenizer.get_added_vocab().items()}
    special = set(tokenizer.all_special_ids) | set(subject.eos_ids)
    control = {t: i for t, i in added.items() if i in special or (len(t) > 1 and not t.isspace())}
    for text, number in control.items():
        if number in encode(f"print: {text} end"):
            return [
                fault(
                    "control tokens",
                    f"a program that prints {text!r} forges the control token {number}, and could write its way out "
                    "of its turn",
                    "use a tokenizer whose control tokens have more than one character",
                )
            ]
    forged = sum(i in tokenizer.encode(f"a {t} b", add_special_tokens=False) for t, i in control.items())
    return [
        ok(
            "control tokens",
            f"{len(control)} control tokens, {forged} of which the tokenizer alone would read out of program output; "
            "as questions and outputs are encoded here, none can be forged",
        )
    ]


def check_turn_ends(subject: Subject) -> list[Finding]:
    """Which ids end a turn, and whether the template's own is among them."""
    tokenizer, eos_ids = subject.tokenizer, subject.eos_ids
    if not eos_ids:
        return [
            fault(
                "turn ends",
                "no token ends a turn: neither generation config nor tokenizer names one, so every turn would run "
                "into its length cap",
                "set model.eos_ids",
            )
        ]
    findings = []
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)!r} ({i})" for i in sorted(eos_ids))
    closing = _closing_token(subject)
    if closing is not None and closing not in eos_ids:
        findings.append(
            fault(
                "turn ends",
                f"the template closes a turn with {tokenizer.convert_ids_to_tokens(closing)!r} ({closing}), and what "
                f"ends a turn is {named}: the model's own end would be overrun",
                f"set model.eos_ids = {sorted({closing, *eos_ids})}",
            )
        )
    else:
        several = f"{len(eos_ids)} tokens end a turn: " if len(eos_ids) > 1 else "one token ends a turn: "
        findings.append(ok("turn ends", several + named + ("; each is taken" if len(eos_ids) > 1 else "")))
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id in eos_ids:
        findings.append(
            ok(
                "turn ends",
                f"pad = eos ({tokenizer.pad_token_id}): harmless here, since masks are made from who wrote a token and "
                "padding from lengths; a trainer that masks by `id != pad` would never teach the end of a turn",
            )
        )
    return findings


def _closing_token(subject: Subject) -> int | None:
    """The first token of what follows an unclosed turn in a chat; None for the plain format."""
    if subject.config.tir.format != "chat":
        return None
    segments = subject.form.observation("x", (), max_tokens=16, last=True)
    first = segments[0].ids[0]
    return first if first in subject.tokenizer.all_special_ids else None


def check_template(subject: Subject) -> list[Finding]:
    """Whether a trajectory stays what was sampled: prefixes kept, separators known. TemplateError if not."""
    from agent_rl.tir.formats import TemplateError, prompt_format

    form, tir = subject.form, subject.config.tir
    if tir.format == "plain":
        return [ok("template", "plain format: contexts are put together from sampled ids, no template is used")]
    separators = [s.ids for s in form.observation("x", tuple(sorted(subject.eos_ids)[:1]), max_tokens=16, last=False)]
    shown = subject.tokenizer.decode(list(separators[0]) + list(separators[-1]))
    strict = tir.model_copy(update={"non_extending_template": "refuse"})
    try:
        prompt_format(subject.tokenizer, strict, subject.eos_ids)
    except TemplateError:
        return [
            ok(
                "template",
                "rewrites earlier turns; as tir.non_extending_template = concatenate asks for, observations are "
                f"appended to the sampled ids instead, with {shown!r} around them",
            )
        ]
    return [ok("template", f"later renders extend earlier ones; {shown!r} stands around an observation")]


def check_context(subject: Subject) -> list[Finding]:
    """Whether an episode fits into the model's context."""
    tir, positions = subject.config.tir, subject.shape.max_positions
    sentence = f"an episode has at most {tir.max_total_tokens} tokens, the model's context {positions}"
    if tir.max_total_tokens > positions:
        return [fault("context", sentence, f"set tir.max_total_tokens = {positions} or less")]
    return [ok("context", sentence)]


def check_weights(subject: Subject) -> list[Finding]:
    """Loads the model: weights finite, logits finite, and a head that the learner knows."""
    import torch

    from agent_rl.learner.policy import Policy

    model = subject.model
    broken = [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]
    if broken:
        return [
            fault(
                "weights",
                f"{len(broken)} tensors hold NaN or infinity, the first is {broken[0]}",
                "take an earlier checkpoint, or download the model again",
            )
        ]
    policy = Policy(model, temperature=subject.config.temperature, packing=subject.config.learner.packing)
    layout = "packed" if policy.packed else "padded"
    parameters = sum(p.numel() for p in model.parameters())
    found = [ok("weights", f"{parameters / 1e6:.1f} M parameters, all finite; the learner trains them {layout}")]
    if subject.config.learner.packing == "auto" and not policy.packed:
        found.append(warning("weights", f"trained padded: {policy.packing_reason}", "expect slower updates"))
    return found
