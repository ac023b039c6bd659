from capeval_core.integrations.shards.shard import read_note
class DamagedError(ValueError): pass
