"""Whatever is asked of it, in whatever order, a ledger conserves and never promises more than it has."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvplan.admission import Ledger, promised_blocks

CAPACITY = 20


class LedgerAgainstDictionary(RuleBasedStateMachine):
    """Every history of reserve, shrink and release, against a plain dictionary."""

    living = Bundle("living")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.model: dict[int, int] = {}
        self.serial = 0

    @rule(target=living, weight=st.integers(0, CAPACITY + 3))
    def reserve(self, weight: int) -> int:
        self.serial += 1
        fits = weight <= CAPACITY - sum(self.model.values())
        assert self.ledger.try_reserve(self.serial, weight) is fits
        if fits:
            self.model[self.serial] = weight
        return self.serial

    @rule(holder=living, weight=st.integers(0, CAPACITY))
    def shrink(self, holder: int, weight: int) -> None:
        shrinks = holder in self.model and weight < self.model[holder]
        assert self.ledger.shrink(holder, weight) is shrinks
        if shrinks:
            self.model[holder] = weight

    @rule(holder=consumes(living))
    def release(self, holder: int) -> None:
        assert self.ledger.release(holder) is (self.model.pop(holder, None) is not None)
        assert self.ledger.release(holder) is False

    @invariant()
    def conserves(self) -> None:
        assert self.ledger.reserved + self.ledger.free == CAPACITY
        assert 0 <= self.ledger.reserved == sum(self.model.values()) <= CAPACITY
        assert self.ledger.holders == len(self.model)

    def teardown(self) -> None:
        for holder in list(self.model):
            assert self.ledger.release(holder)
        assert self.ledger.reserved == 0


TestLedgerAgainstDictionary = LedgerAgainstDictionary.TestCase


@given(st.integers(1, 10**7), st.integers(1, 100))
def test_promised_blocks_is_the_exact_floor(blocks: int, percent: int) -> None:
    assert promised_blocks(blocks, percent / 100) == (blocks - 1) * percent // 100
