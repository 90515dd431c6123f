"""The tests of kvplan.

``test_<module>.py`` tests a module or command on small values worked out by hand. ``laws/`` has properties that hold
for every input (Hypothesis), ``fuzz/`` damaged input, with what once broke in ``fuzz_corpus/``. ``golden/`` has
expected outputs and figures with their sources, ``configs/`` facts of published models. ``tables/`` compares kvplan
with recorded facts, ``benchmarks/`` with rivals. The other modules are helpers: small models (``models``), strategies,
servers to talk to, and the step-by-step references (``reference_engine``, ``reference_door``) of the simulation.

Only loopback is reachable (``conftest``), and warnings are errors. Tests that read ../shared/data are skipped where it
is absent.
"""
