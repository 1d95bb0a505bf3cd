"""The program on a node: watchdog and agent. Standard library only, Python 3.8; the client imports `wire_format` and
`workers` alone (`result_storage.presigned_requests` to try a bucket, `fetch.permitted` and `fetch.web` to judge and try
an address).

Each of these may import only what stands below it:

daemon             lives as long as the node: watchdog, agent, `init`, `end`
checkup            raw facts about a place, for `gpuops doctor`
rpc                answers a client's requests
run                one run on this node: start, watch, stop, result
usage              what the machine and the ranks use
peers              the nodes of one run talk to each other
network            addresses of this node, and whether others can be reached
result_storage     results that must outlive the node, and how long the node lives for them
python             the Pythons of this node
fetch              data straight from a bucket or a web server (mode `fetch`)
files              pushed trees, outputs, transfers
run_files          the files of a run's folder
run_documents      what they say: launch spec, records, reasons
client_activity    clients that are connected, people at work on the machine
sockets            TCP connections of the machine
processes          processes: who lives, whose they are, ending all of them
lease_clock        until when the node may live
machine_resources  its boot, cores and memory
http_connection    connections to web servers and object stores
wire_format        what client and node must agree on byte for byte
node               the node's folder, its files, and refusals
workers            threads that take the next work when theirs has ended; the client's as well
compiled_code      this program, compiled once on a node
"""
