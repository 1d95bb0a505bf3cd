"""Results kept where they outlive this node, and how long the node lives for them.

sink                stores a run's results: in a folder, or in a bucket
stored_files        which files of a run are stored
verified_copy       one file copied to another disk and read back
bucket_sink         a bucket as sink: one archive for each node
multipart_upload    sends that archive in parts
presigned_urls      the permissions to do so, for one run
streamed_archive    an archive composed while it is sent
presigned_requests  requests to an object store with presigned URLs
wait_for_download   a node waits for clients to download results
end_after_upload    a node ends as soon as its results are safe
"""
