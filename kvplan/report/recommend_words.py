"""The small print of ``kvplan recommend``: what was searched, what its headings mean, what to run next."""

from dataclasses import replace
from shlex import join, quote

from kvplan.engines.options import flag_words
from kvplan.recommend.results import Advice
from kvplan.report.numbers import percent, seconds
from kvplan.report.traffic_file import file_name, write_step


def search(advice: Advice) -> str:
    """What was searched, within which bounds, on which seeds."""
    limits, sources = advice.constraints, advice.constraint_sources
    bounds = [
        f"truncated ≤ {percent(limits.max_truncated_share)} ({sources['truncated_share']})",
        f"refused ≤ {percent(limits.max_refused_share)} ({sources['refused_share']})",
    ]
    if limits.max_e2e_p99_s is not None:
        bounds.append(f"p99 ≤ {seconds(limits.max_e2e_p99_s)} ({sources['e2e_p99_s']})")
    seeds = f"seed {advice.seed}" if advice.seeds == 1 else f"seeds {advice.seed} to {advice.seed + advice.seeds - 1}"
    fewer = f"; {_fewer_seeds(advice)}" if advice.sensitivity[0].seeds < advice.seeds else ""
    return f"{advice.policy}, {', '.join(bounds)}; {advice.runs} runs, the same requests in all, {seeds}{fewer}"


def _fewer_seeds(advice: Advice) -> str:
    """Which tables were played on fewer seeds: why one setting's figures differ among them."""
    return (
        f"the fractions on {advice.fractions[0].played.seeds}, what is off on {advice.sensitivity[0].seeds}, the rows "
        f"beside this answer on {advice.price.none.seeds} of them, so figures differ a little between the tables"
    )


def columns_said(advice: Advice) -> str:
    """What the headings mean, those that are there."""
    own = advice.own_cap_truncated_share
    seen = advice.observed is not None and advice.observed.pool_blocks is not None
    pool = "the blocks that were observed" if seen else "the least that its band allows"
    also = f" ({percent(own)} more end at the cap that their client sent)" if own else ""
    said = [f"cuts off: answers that the default ends, of all requests{also}", "refused: at least once"]
    if advice.caps:
        said[:0] = ["cap: the max_tokens default"]
        said += [
            "95%: the interval of refused",
            "cut and ref: the curves of cuts off and refused; past | the limit is broken",
        ]
    said += [
        f"fractions are of the planned pool while the engine has {pool}",
        "overdrawn: more is promised than planned",
    ]
    if advice.default_max_tokens is not None:
        said += ["then set: the cap that would keep the constraints, - none near"]
    return "; ".join([*said, "done tokens/s: output delivered each second"])


def next_commands(advice: Advice, written_to: str | None) -> tuple[str, ...]:
    """What to run next; ``written_to`` is the traffic file that has the answer already."""
    if written_to is not None:
        return (f"kvplan check {quote(written_to)}", f"kvplan simulate {quote(written_to)}", *_flags_step(advice))
    name = quote(file_name(advice.traffic.file))
    if not advice.feasible:
        if advice.fleet.needed is not None:
            return (f"kvplan recommend {name} --replicas {advice.fleet.needed}",)
        return (*_larger_step(advice, name), "kvplan explain safety-fraction")
    return (write_step(advice.traffic.file), *_flags_step(advice), "kvplan explain safety-fraction")


def _larger_step(advice: Advice, name: str) -> tuple[str, ...]:
    """Where no number of replicas helps, twice and four times the ranks may; without a GPU, only other limits do."""
    asked, model = advice.traffic.deployment, advice.plant.model
    if model is None or asked.gpu_name is None:
        return (f"kvplan recommend {name} --max-refused 5%",)
    ranks = f"{2 * asked.tensor_parallel},{4 * asked.tensor_parallel}"
    return (f"kvplan compare {quote(model.id)} --traffic {name} --gpu {asked.gpu_name} --tp {ranks}",)


def _flags_step(advice: Advice) -> tuple[str, ...]:
    """The command that prints the engine's flags with this answer, where the plan is of a GPU's memory."""
    asked, model = advice.traffic.deployment, advice.plant.model
    if model is None or asked.gpu_name is None or asked.kv_pool is not None:
        return ()
    decided = replace(
        asked,
        max_model_len=advice.plant.settings.max_model_len,
        max_num_seqs=advice.engine.max_num_seqs,
        max_num_batched_tokens=advice.engine.max_num_batched_tokens,
    )
    named = {
        "--gpu": asked.gpu_name,
        "--draft-model": asked.draft_model_name,
        "--calibration": asked.calibration,
        "--default-max-tokens": advice.default_max_tokens,
    }
    words = [word for flag, value in named.items() if value is not None for word in (flag, str(value))]
    return (join(["kvplan", "fit", model.id, *words, *flag_words(decided), "--flags", "cli"]),)
