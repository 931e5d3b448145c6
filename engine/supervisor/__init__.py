"""A supervised child process: started, watched, ended, with the cause of its death, never left as an orphan.

It moves bytes and lines; it knows no protocol and no request.

    supervisor = Supervisor(ChildSpec(("prog", "--serve")), on_line, on_death)
    life = supervisor.start()                 # blocks until on_line(life, line) returned True
    supervisor.send(life, b"GO\\n", 10.0)
    supervisor.close()
"""

from engine.supervisor.death import Death
from engine.supervisor.supervisor import Backoff, ChildSpec, Sending, State, Supervisor

__all__ = ["Backoff", "ChildSpec", "Death", "Sending", "State", "Supervisor"]
