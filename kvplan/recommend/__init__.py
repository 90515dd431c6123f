"""Which settings: the share of the pool to promise and the cap to fill in, with the evidence and the price."""

from kvplan.recommend.quick import recommend, safety_fraction, with_recommendation
from kvplan.recommend.search import Search, search
from kvplan.recommend.written import recommended_text

__all__ = ["Search", "recommend", "recommended_text", "safety_fraction", "search", "with_recommendation"]
