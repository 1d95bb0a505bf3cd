"""What lives on a node as long as the node does.

watchdog         outermost process: keeps the lease, restarts the agent, ends the machine
contain_command  first program of a container that is a node: starts the watchdog, ends with it
hold_command     holds a machine of a batch job: starts the watchdog, hears of the job's end, ends with it
main             the agent: serves clients, supervises runs
init_command     starts a node: its folder, its files, its watchdog
end_command      ends and removes a node; lists the nodes of a root
image_variables  the environment that a rented machine's image brings
"""
