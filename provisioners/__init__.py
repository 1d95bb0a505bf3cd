"""Provisioners: one package per provider, all behind the contract in `base`.

    base                 the contract as provider modules import it, ours and those of other wheels
    registry             from a provider's name to its provisioner, lazily; entry points of other wheels
    checked_provisioner  a provisioner held to its contract: it answers in time, in our errors, each resource once
    kit                  what providers of rented machines need alike: HTTP, errors, keys, names of GPUs, SSH machines

Where two providers have the same story to tell, its file has the same name in both:

    story                                              file            local  ssh  runpod  aws  slurm  pbs  lambda  vast
    the contract, member by member                     provisioner       x     x      x     x     x     x      x      x
    the provider's own flags, and a request checked    options                        x     x     x     x
    where its key lies, and what its answers mean      service                        x                        x      x
    where a key comes from                             credentials                          x
    whose account it is                                account                        x     x
    one request, one answer or one of our errors       api                            x     x
    what failed answers mean                           errors                         x     x
    which machines there are, which a request means    catalog                        x     x                  x
    what of them can be had now, and for how much      capacity                       x     x
    offers, in the order in which they are tried       offers                         x     x                         x
    the request that creates                           launch                         x     x
    what a machine runs first: dead-man, its keys      boot_script                    x     x
    machines as the provider tells them, as resources  machines                x      x     x                  x      x
    finding, looking at and ending what is ours        lifecycle                            x
    data centers, and which a `--region` means         regions                        x
    a pod's log, and why a start fails                 pod_log boot_log               x
    EC2's answers as types                             ec2                                  x
    the tags by which things are ours                  tags                                 x
    prices                                             pricing                              x
    machine images                                     images                               x
    subnets, security groups, this computer's address  network                              x
    reserved capacity                                  reservations                         x
    quotas: counted, shown, requested; advice on them  quotas, quota_report, quota_advice (aws)
    other machines that a request could have           instance_alternatives (aws)
    the least permissions that will do                 policy                               x
    a node's processes, seen from outside              processes         x
    logging in once, and which node is on which host   placement               x
    the file of hosts that something of ours may be on hosts                   x
    the host keys that the user has accepted           accepted_keys           x
    the agent on a host, called or brought again       host_agent              x
    containers: what a host has, their words and life  container_probe, container_spec, container_host (ssh)
    a batch system's commands, and what they print     commands                                   x     x
    what a cluster has: queues, accounts, nodes        site                                       x     x

Lambda, Vast.ai and RunPod are written on `kit.rented`, which has what is theirs alike. Lambda lies in `lambdacloud`
(`lambda` is a word of Python). What Slurm and PBS share besides, a job as a cluster, lies in `batch`.
"""
