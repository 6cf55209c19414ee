"""Numerical kernels, each beside a plain reference twin: MaxSim (:mod:`.maxsim`) and Ward (:mod:`.ward`)."""
