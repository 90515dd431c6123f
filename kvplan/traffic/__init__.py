"""What arrives: mixes described in a traffic file, and recorded traces.

``load`` reads a traffic file (``file/`` has a module for each of its sections) into the values of ``spec``. ``sample``
draws requests from them: when they come (``arrival_processes``), how long they are (``distributions``) and what they
share (``prefixes``); the result is ``arrivals``. ``traces/`` reads recorded traces, describes them, and writes traffic
files that are drawn like them.
"""

from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.load import load_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic, TrafficClass

__all__ = ["Arrivals", "Traffic", "TrafficClass", "load_traffic", "sample"]
