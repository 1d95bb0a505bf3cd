"""Programs on a node as byte streams: local processes, SSH, and the agent's requests over them.

connection       the contract of a connection, and the one to this computer; `connect` chooses the kind
ssh              connections by SSH: paramiko, or the system's OpenSSH
rpc              requests to an agent, as JSON lines; which programs can be started on a node
schemas          the shape of every answer to a request, and of a run's files on a node
schema_types     numbers and texts with bounds, of which all shapes are made
file_schemas     the shape of answers about files: pushes, results, copies
usage_schemas    the shape of what a node says of its use
program_schemas  the shape of what the agent's programs print, and of a node's other files
validation       converts what a node says to those shapes, or rejects it
relay            the program on a node that passes a push on; `link_certificate`: for two such nodes
bulk_transfer    one bulk transfer, which ends within a limit whichever side stops
deadlines        actions at a time that mostly does not come, by one thread
rsync            sends files to a node by this computer's rsync
rsync_joint      joins its ends to a program on the node, and notices silence
rsync_relay      what it starts as its remote shell
tar_reader       reads the tar streams that agents write
"""
