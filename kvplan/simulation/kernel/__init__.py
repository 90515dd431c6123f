"""The kernel: clients, front doors and engines in one event loop, as plain functions over lists or arrays.

``run`` runs it, ``arrays`` and ``rows`` lay out what it is given and read what it leaves, ``compiled`` compiles it. All
other modules are the kernel itself: ``event_loop``, the ``front_door``, and the engine, which ``advance``s.
"""
