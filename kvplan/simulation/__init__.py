"""What happens over time when traffic meets a KV pool: clients, a front door, and the engine's clock.

``simulate`` plays every strategy on every seed as ``tasks`` over ``workers``. A task puts a ``front_door`` in front of
a ``backend`` (planned in ``deployment``, timed in ``step_time``), runs the ``kernel`` and makes ``figures`` of what
became of each request; ``aggregate`` combines the seeds into ``results``. ``bounds`` are closed forms beside them.
``efficiency`` fits the step time to a ``measured_run`` of a real engine.
"""
