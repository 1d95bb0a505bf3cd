"""What providers of rented machines need alike, ours and those of other wheels: docs/providers.md shows how to use it.

http_client   one HTTP request: a deadline, connections, a proxy
json_api      a JSON API on top of it: key, errors, retries of what reads, pace
http_api      an address that a key may be sent to; the time that answers tell
error_table   the one table form for a provider's failed answers
documents     parts of a JSON document, whatever is in it
pacing        turns that are so many seconds apart, over all processes of this computer
calls         several calls, each made whatever becomes of the others
api_key       an account that is known by one API key
keys          SSH key pairs: our login, and a machine's first host key
boot_watch    the dead-man and the first host key of a container that starts with a command of ours
cloud_init    a machine's first host key and our login, for providers that take user data
ssh_machine   `Resource.data` of a machine that is reached by SSH
gpu_names     which GPU a `--gpu-type` means, and did-you-mean
"""
