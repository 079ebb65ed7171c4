// Tests which file systems count as remote, by the kernel's numbers.
#include "io/system.hpp"

#include "doctest_safemap.hpp"

#include <linux/magic.h>

namespace file_system_test {

using namespace safemap::io;

TEST_CASE("network and FUSE file systems are recognised by the kernel's numbers, and local ones are not among them") {
    struct Row {
        unsigned magic;
        std::string_view name;
    };
    for (const Row row : {Row{NFS_SUPER_MAGIC, "NFS"}, Row{SMB_SUPER_MAGIC, "SMB"}, Row{CIFS_SUPER_MAGIC, "SMB"},
                          Row{SMB2_SUPER_MAGIC, "SMB"}, Row{FUSE_SUPER_MAGIC, "FUSE"}, Row{V9FS_MAGIC, "9p"},
                          Row{CEPH_SUPER_MAGIC, "Ceph"}, Row{AFS_SUPER_MAGIC, "AFS"}, Row{AFS_FS_MAGIC, "AFS"},
                          Row{CODA_SUPER_MAGIC, "Coda"}, Row{NCP_SUPER_MAGIC, "NCP"}, Row{OCFS2_SUPER_MAGIC, "OCFS2"},
                          // Missing in the kernel's header.
                          Row{0x0bd00bd0, "Lustre"}, Row{0x47504653, "GPFS"}, Row{0x19830326, "BeeGFS"}})
        CHECK(remote_file_system(row.magic) == row.name);
    for (const unsigned local :
         std::initializer_list<unsigned>{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC,
                                         F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, SQUASHFS_MAGIC, RAMFS_MAGIC})
        CHECK(remote_file_system(local).empty());
    CHECK(overlay_magic == OVERLAYFS_SUPER_MAGIC);
}

}  // namespace file_system_test
