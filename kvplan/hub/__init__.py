"""Fetches a model's facts from the Hub or its cache; the only room of the core that uses the network."""

from kvplan.hub.facts import HubFacts, fetch_facts
from kvplan.hub.failures import HubUnavailableError
from kvplan.hub.gguf import fetch_gguf, split_gguf_reference

__all__ = ["HubFacts", "HubUnavailableError", "fetch_facts", "fetch_gguf", "split_gguf_reference"]
