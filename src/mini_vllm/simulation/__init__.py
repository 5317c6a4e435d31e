"""Traffic, replayed: in real time on a real model, or under a virtual clock with a cost model instead of weights.

Both drive the same Scheduler and KVCache classes that serve. Doors: `traffic.load` (a file or a generator),
`realtime.replay`, `cluster.simulate`, `compare.compare`, `report` (text), `costs.load_costs`.
"""
