"""What providers of rented machines need alike, ours and those of other wheels: docs/providers.md shows how to use it.

rented          a provisioner of machines that are rented by an HTTP API with one key, but for its provider's own part
service         such a provider as plain data: its key, its address, its errors
account         whose account a key is of, and what is no other account's
json_api        a JSON API: one method for each kind of request, with its key, errors, retries of what reads, pace
http_client     one HTTP request: a deadline, connections, a proxy
http_api        an address that a key may be sent to; the time that answers tell
error_table     the one table form for a provider's failed answers, and what a status means everywhere
documents       parts of a JSON document, whatever is in it
pacing          turns that are so many seconds apart, over all processes of this computer
calls           several calls, each made whatever becomes of the others
instance_types  machines that are rented by type, each in regions: which a request means, and offers
machine_offer   an offer's columns, and what each of its machines has
options         a provider's own flags, declared as fields, and a request checked
gpu_names       which GPU a `--gpu-type` means, and did-you-mean
container_images  what images' names tell, and by which words one cannot be pulled
keys            SSH key pairs: our login, and a machine's first host key
cloud_init      a machine's first host key and our login, for providers that take user data
container_boot  how a container boots by a command of ours, with a dead-man, and ends itself by its provider's API
ssh_machine     a machine that is reached by SSH, as a resource
"""
