"""Which settings to use: how much of the pool to promise and which default cap to fill in, with evidence and price."""

from kvplan.recommend.from_simulation import with_recommendation
from kvplan.recommend.results import Advice
from kvplan.recommend.safety import safety_fraction
from kvplan.recommend.search import recommend
from kvplan.recommend.traffic_file import recommended_text

__all__ = ["Advice", "recommend", "recommended_text", "safety_fraction", "with_recommendation"]
