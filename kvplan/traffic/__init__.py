"""What arrives: mixes described in a traffic file, and recorded traces.

``load`` reads a file (``file/``: its text, the shapes it may have, complaints) into the values of ``kinds``;
``sample`` draws these with ``arrivals`` (when), ``distributions`` (how long) and ``prefixes`` (what is shared), or
replays a trace; ``merge`` brings the classes together. ``traces/`` reads recorded traces, describes them, and writes
files that are drawn like them.
"""

from kvplan.traffic.kinds import Arrivals, Traffic, TrafficClass
from kvplan.traffic.load import load_traffic
from kvplan.traffic.sample import sample

__all__ = ["Arrivals", "Traffic", "TrafficClass", "load_traffic", "sample"]
