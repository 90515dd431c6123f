"""The engine's scheduler, one step at a time, written from the words of vLLM's rules: what the kernel must equal.

Nothing is clever here: every request keeps its own counts (or its own blocks, with prefix caching), every step walks
the whole running list. Time is counted, not added up: seconds since the engine last stood idle = base × steps + prefill
× tokens + decode × sequences + kv × context tokens, so that no rounding depends on how many steps were taken.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import nan

from kvplan.engines.engine_plan import CacheGroup
from kvplan.simulation.types import EngineSetup


@dataclass(eq=False)
class Sequence:
    """One request inside the engine. ``pending`` tokens are computed by a batch in flight, not known yet."""

    serial: int
    prompt: int
    answer: int
    cap: int
    content: tuple[object, ...] = ()
    parent: int = -1
    known: int = 0
    computed: int = 0
    pending: int = 0
    in_flight: int = 0
    generated: int = 0
    preemptions: int = 0
    highest_computed: int = 0
    recomputed: int = 0
    scheduled_s: float = nan
    first_token_s: float = nan
    finish_s: float = nan
    gone: bool = False
    taken: list[int] = field(default_factory=list)
    slid: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached: int = 0


@dataclass(eq=False)
class Share:
    """One request's part of a batch."""

    sequence: Sequence
    tokens: int
    samples: bool
    life: int


class ReferenceEngine:
    """Steps until a given time; ``releases`` lists (time, sequence) of those that ended, in order."""

    def __init__(self, setup: EngineSetup, chain_tokens: int = 512) -> None:
        self.setup, self.chain_tokens = setup, chain_tokens
        self.groups: tuple[CacheGroup, ...] = setup.layout.groups
        self.depth = 2 if setup.async_scheduling else 1
        self.caching = setup.prefix_caching and len(self.groups) == 1 and self.groups[0].rule == "full"
        self.free_blocks = setup.blocks - setup.layout.reserved_blocks
        first = setup.layout.reserved_blocks
        self.queue: OrderedDict[int, None] = OrderedDict((b, None) for b in range(first, setup.blocks))
        self.holders = dict.fromkeys(range(setup.blocks), 0)
        self.content_of: dict[int, object] = {}
        self.blocks_with: dict[object, list[int]] = {}
        self.arrived: deque[tuple[float, Sequence]] = deque()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.flight: deque[tuple[list[Share], tuple[int, int, int, int]]] = deque()
        self.releases: list[tuple[float, Sequence]] = []
        self.idle_since_s = 0.0
        self.counts = (0, 0, 0, 0)
        self.now = 0.0
        self.tried_s = -1.0
        self.steps = self.over_capacity_events = self.prefill_tokens = self.decode_tokens = 0
        self.peak_used = 0

    def add(self, time_s: float, sequence: Sequence) -> None:
        sequence.known = sequence.prompt
        sequence.taken, sequence.slid = [0] * len(self.groups), [0] * len(self.groups)
        self.arrived.append((time_s, sequence))

    def leave(self, sequence: Sequence) -> None:
        """The client walked away; called between steps."""
        sequence.gone = True
        self.arrived = deque(entry for entry in self.arrived if entry[1] is not sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
            self.give_back(sequence)

    # -- time ---------------------------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        """Everything that is scheduled before ``until_s``, and delivered not after it."""
        while True:
            if not self.flight:
                if not self.waiting and not self.running:
                    if not self.arrived or self.arrived[0][0] > until_s:
                        return
                    self.wait_for(self.arrived[0][0])
                if self.now >= until_s:
                    return
                self.see_arrivals()
                if not self.schedule():
                    later = [time_s for time_s, _ in self.arrived if time_s > self.now]
                    if not later:
                        return
                    assert not self.running
                    self.wait_for(later[0])
                    continue
            inside = bool(self.waiting or self.running or self.visible())
            if len(self.flight) < self.depth and inside and self.tried_s < self.now:
                if self.now >= until_s:
                    return
                self.see_arrivals()
                if self.schedule():
                    continue
                self.tried_s = self.now  # what comes later than this instant is seen when a batch returns
            end_s = self.time_of(self.flight[0][1])
            if end_s > until_s:
                return
            self.now = end_s
            self.deliver(self.flight.popleft()[0])

    def wait_for(self, time_s: float) -> None:
        """Stand idle until ``time_s``, from where time is counted anew."""
        if time_s > self.now:
            self.now = self.idle_since_s = time_s
            self.counts = (0, 0, 0, 0)

    def visible(self) -> bool:
        return bool(self.arrived) and self.arrived[0][0] <= self.now

    def see_arrivals(self) -> None:
        while self.visible():
            self.waiting.append(self.arrived.popleft()[1])

    def time_of(self, counts: tuple[int, int, int, int]) -> float:
        step = self.setup.step
        return self.idle_since_s + (
            step.base_s * counts[0]
            + step.prefill_token_s * counts[1]
            + step.decode_sequence_s * counts[2]
            + step.kv_token_s * counts[3]
        )

    # -- blocks -------------------------------------------------------------------------------------------------------

    def in_group(self, group: CacheGroup, tokens: int) -> int:
        return group.fixed_blocks if group.rule == "fixed" else -(-tokens // group.block_tokens)

    def slide(self, sequence: Sequence, certain: int) -> None:
        """Blocks that no certain token's successor attends to come back."""
        for i, group in enumerate(self.groups):
            window = group.window_tokens or 0
            outside = 0
            if group.rule == "sliding":
                outside = max(0, certain - window - group.retained_tokens + 1)
            elif group.rule == "chunked":
                outside = certain // window * window
            gone = min(outside // group.block_tokens, sequence.taken[i])
            if gone > sequence.slid[i]:
                self.free_blocks += gone - sequence.slid[i]
                sequence.slid[i] = gone

    def whole_input(self, tokens: int) -> int:
        """Blocks that must be free before a request of ``tokens`` known tokens is admitted."""
        total = 0
        for group in self.groups:
            blocks = self.in_group(group, min(tokens, self.setup.max_model_len))
            window, ahead = group.window_tokens or 0, self.setup.layout.in_flight_tokens
            if group.rule == "sliding":
                held = min(window + group.retained_tokens - 1 + ahead, self.setup.max_model_len)
                blocks = min(blocks, -(-held // group.block_tokens) + 1)
            elif group.rule == "chunked":
                blocks = min(blocks, -(-min(window + ahead, self.setup.max_model_len) // group.block_tokens))
            total += blocks
        return total

    def take(self, sequence: Sequence, tokens: int, hits: int = 0, spare: int = 0) -> bool:
        """Blocks for ``tokens`` more tokens, if they are free; the first ``hits`` blocks were found in the cache."""
        self.slide(sequence, max(0, sequence.computed - sequence.in_flight))
        end = min(sequence.computed + tokens, self.setup.max_model_len)
        if self.caching:
            need = self.in_group(self.groups[0], end) - len(sequence.blocks)
            if need + spare > len(self.queue):
                return False
            for _ in range(need):
                block = self.queue.popitem(last=False)[0]
                self.forget(block)
                self.holders[block] = 1
                sequence.blocks.append(block)
            self.remember(sequence, min(end, sequence.known))
            self.free_blocks = len(self.queue)
            return True
        needs = [max(0, self.in_group(g, end) - sequence.taken[i]) for i, g in enumerate(self.groups)]
        if sum(needs) + spare > self.free_blocks:
            return False
        self.free_blocks -= sum(needs)
        sequence.taken = [taken + need for taken, need in zip(sequence.taken, needs, strict=True)]
        return True

    def forget(self, block: int) -> None:
        content = self.content_of.pop(block, None)
        if content is not None:
            self.blocks_with[content].remove(block)
            if not self.blocks_with[content]:
                del self.blocks_with[content]

    def remember(self, sequence: Sequence, tokens: int) -> None:
        full = tokens // self.groups[0].block_tokens
        for j in range(sequence.cached, full):
            block, content = sequence.blocks[j], self.content(sequence, j)
            self.content_of[block] = content
            self.blocks_with.setdefault(content, []).append(block)
        sequence.cached = max(sequence.cached, full)

    def content(self, sequence: Sequence, j: int) -> object:
        """What identifies block j: the chain of shared ids up to it, or the request and its place."""
        end = (j + 1) * self.groups[0].block_tokens
        if not sequence.content:
            return (sequence.serial, j)
        if end <= sequence.prompt:
            return (sequence.content[: -(-end // self.chain_tokens)], j)
        return (sequence.content, sequence.prompt, sequence.parent if sequence.parent < 0 else sequence.serial, j)

    def give_back(self, sequence: Sequence) -> None:
        if not self.caching:
            self.free_blocks += sum(sequence.taken) - sum(sequence.slid)
            sequence.taken, sequence.slid = [0] * len(self.groups), [0] * len(self.groups)
            return
        known, unknown = list[int](), list[int]()
        for block in reversed(sequence.blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                (known if block in self.content_of else unknown).append(block)
        for block in reversed(unknown):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)
        for block in known:
            self.queue[block] = None
        sequence.blocks, sequence.cached = [], 0
        self.free_blocks = len(self.queue)

    # -- one step -----------------------------------------------------------------------------------------------------

    def schedule(self) -> bool:
        """Form the next batch; False where nothing could be scheduled."""
        setup, batch = self.setup, list[Share]()
        budget, preempted, place = setup.max_num_batched_tokens, False, 0
        longest = setup.long_prefill_tokens if len(self.running) + len(self.waiting) > 1 else 0
        while place < len(self.running) and budget > 0:
            sequence = self.running[place]
            limit = sequence.prompt + sequence.cap
            if sequence.pending and sequence.computed + 2 - sequence.pending >= limit:
                place += 1
                continue
            tokens = sequence.known + sequence.pending - sequence.computed
            tokens = min(tokens, longest or tokens, budget, setup.max_model_len - sequence.computed - 1)
            if tokens == 0:
                place += 1
                continue
            while not (fits := self.take(sequence, tokens)):
                victim = self.running.pop()
                self.preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            if not fits:
                break
            batch.append(Share(sequence, tokens, samples=False, life=sequence.preemptions))
            budget -= tokens
            place += 1
        self.over_capacity_events += preempted
        skipped = list[Sequence]()
        while not preempted and budget > 0 and self.waiting and len(self.running) < setup.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.in_flight:
                skipped.append(self.waiting.popleft())
                continue
            found = self.hits(sequence)
            spare = setup.watermark_blocks if self.running else 0
            unused = sum(1 for block in found if self.holders[block] == 0)
            if setup.reserves_whole_input and (
                self.whole_input(sequence.known) - len(found) + unused + spare > self.free_blocks
            ):
                break
            computed = len(found) * self.groups[0].block_tokens
            tokens = sequence.known - computed
            tokens = min(tokens, longest or tokens)
            if tokens > budget and not setup.chunked_prefill:
                break
            tokens = min(tokens, budget)
            if self.caching and not self.room_after(found, unused, computed + tokens, spare):
                break
            for block in found:
                self.queue.pop(block, None)
                self.holders[block] += 1
            self.free_blocks = len(self.queue) if self.caching else self.free_blocks
            sequence.blocks, sequence.cached, sequence.computed = list(found), len(found), computed
            if not self.take(sequence, tokens, spare=spare):
                assert not found
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.scheduled_s != sequence.scheduled_s:
                sequence.scheduled_s = self.now
            batch.append(Share(sequence, tokens, samples=False, life=sequence.preemptions))
            budget -= tokens
        self.waiting.extendleft(skipped)
        if not batch:
            return False
        prefill = decode = context = 0
        for share in batch:
            sequence = share.sequence
            if share.tokens == 1 and sequence.computed >= sequence.prompt:
                decode += 1
            else:
                prefill += share.tokens
            sequence.recomputed += max(
                0, min(sequence.computed + share.tokens, sequence.highest_computed) - sequence.computed
            )
            sequence.computed += share.tokens
            sequence.highest_computed = max(sequence.highest_computed, sequence.computed)
            sequence.in_flight += share.tokens
            context += sequence.computed
            if sequence.computed >= sequence.known + sequence.pending:
                sequence.pending += 1
                share.samples = True
        old = self.counts
        self.counts = (old[0] + 1, old[1] + prefill, old[2] + decode, old[3] + context)
        self.flight.append((batch, self.counts))
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += decode
        self.peak_used = max(self.peak_used, setup.blocks - setup.layout.reserved_blocks - self.free_blocks)
        return True

    def room_after(self, found: list[int], unused: int, tokens: int, spare: int) -> bool:
        need = self.in_group(self.groups[0], tokens) - len(found) + unused
        return need + spare <= len(self.queue)

    def hits(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks from the start that leaves one known token to compute."""
        found = list[int]()
        if self.caching:
            for j in range((sequence.known - 1) // self.groups[0].block_tokens):
                blocks = self.blocks_with.get(self.content(sequence, j))
                if not blocks:
                    break
                found.append(blocks[0])
        return found

    def preempt(self, victim: Sequence) -> None:
        self.give_back(victim)
        victim.computed = victim.pending = 0
        victim.preemptions += 1
        self.waiting.appendleft(victim)

    def deliver(self, batch: list[Share]) -> None:
        for share in batch:
            sequence = share.sequence
            sequence.in_flight -= share.tokens
            if sequence.gone or not share.samples:
                continue
            sequence.generated += 1
            sequence.known += 1
            if sequence.first_token_s != sequence.first_token_s:
                sequence.first_token_s = self.now
            current = share.life == sequence.preemptions
            if current:
                sequence.pending -= 1
                if self.caching:
                    self.remember(sequence, min(sequence.computed - sequence.in_flight, sequence.known))
            if sequence.generated < min(sequence.answer, sequence.cap):
                continue
            sequence.gone = True
            sequence.finish_s = self.now
            if sequence in self.running:
                self.running.remove(sequence)
                self.give_back(sequence)
            else:
                self.waiting.remove(sequence)
            self.releases.append((self.now, sequence))
