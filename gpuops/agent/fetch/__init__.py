"""Mode `fetch`: data come to this node straight from a bucket or a web server, resumable and checked.

Each of these may import only what stands below it:

mode          the program: its conversation with the client, progress, several downloads at once
download      one file: attempts until it is whole, checked and in its place
addresses     the addresses of files, which the client hands out and renews
store         where data lie on the disk, whole or in part, and what is known of them
web           one request and its answer
permitted     which addresses data may come from
"""
