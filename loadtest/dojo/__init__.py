"""AgentDojo's tools as ours, and a model that does whatever it reads."""
