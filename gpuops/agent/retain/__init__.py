"""Results kept where they outlive this node, and how long the node lives for them.

sink              stores a run's results: in a folder, or in a bucket
run_contents      which files of a run are stored
safe_copy         one file copied to another disk and read back
bucket_sink       a bucket as sink: one archive for each node
multipart_upload  sends that archive in parts
presigned_urls    the permissions to do so, for one run
virtual_tar       an archive composed while it is sent
object_requests   requests to an object store with presigned URLs
await_download    a node waits for clients to download results
end_once_stored   a node ends as soon as its results are safe
"""
