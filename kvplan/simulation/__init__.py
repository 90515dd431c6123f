"""What happens over time when traffic meets a pool: clients, a front door, and the engine's clock.

``run`` is the whole of it: ``deployment`` and ``plant`` (with ``roofline``) say what the traffic meets, ``doors`` and
``clients`` what it is told, ``tasks`` and ``workers`` play every strategy on every seed in the ``kernel``,
``statistics`` and ``gather`` make figures of the rows, and ``results`` holds the answer. ``bounds`` are closed forms
beside it; ``measured`` and ``efficiency`` compare it with a run of the real engine.
"""
