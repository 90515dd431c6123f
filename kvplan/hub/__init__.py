"""Fetches a model's facts from the Hub or its cache; the only room of the core that uses the network."""

from kvplan.hub.failures import HubUnavailableError
from kvplan.hub.fetch import fetch_facts, fetch_gguf

__all__ = ["HubUnavailableError", "fetch_facts", "fetch_gguf"]
