"""What arrives: mixes described in a traffic file, and recorded traces."""

from kvplan.traffic.kinds import Arrivals, Traffic, TrafficClass
from kvplan.traffic.load import load_traffic
from kvplan.traffic.sample import sample

__all__ = ["Arrivals", "Traffic", "TrafficClass", "load_traffic", "sample"]
