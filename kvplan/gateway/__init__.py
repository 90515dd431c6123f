"""The plan, enforced: an ASGI middleware that admits a request only while its worst case fits, and a reverse proxy
built on it, which needs the extra ``gateway``. The planner imports none of it. The path of one request:

``server``          accepts it on uvicorn or granian, with limits on its head; ``app`` answers health and metrics itself
``middleware``      carries it through the steps below, and releases its reservation whatever happens
``request_body``    receives the body within limits of size and time, and parses the JSON
``routes``          reads the prompt, the output cap and the number of sequences; ``token_bounds`` bounds the prompt
``engine_queries``  counts the prompt exactly where the engine offers it, after comparing its pool with the plan
``admission``       prices the demand and reserves it in the ledger, or in a ``shared_ledger`` in Redis
``responses``       refuses what does not fit; ``in_flight`` ends requests whose client left or stopped reading
``proxy``           forwards the rest over a ``connection`` of the ``connection_pool``; ``metrics`` counts it all
"""

from kvplan.gateway.admission import Admission, OwnLedger, Promise
from kvplan.gateway.middleware import AdmissionMiddleware

__all__ = ["Admission", "AdmissionMiddleware", "OwnLedger", "Promise"]
