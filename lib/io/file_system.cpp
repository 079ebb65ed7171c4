// The table of magic numbers. Source: linux/magic.h, or else the source code of the file system.
#include "io/file_system.hpp"

namespace safemap::SAFEMAP_ABI::io {

namespace {

struct FileSystem {
    std::uint32_t magic;
    std::string_view name;
};

constexpr FileSystem remote[] = {
    {0x0000'6969, "NFS"},      {0xff53'4d42, "SMB"},  // mounted as cifs
    {0xfe53'4d42, "SMB"},      {0x0000'517b, "SMB"},  // smbfs, before Linux 2.6.37
    {0x6573'5546, "FUSE"},                            // virtiofs and all user-space file systems, also for buckets
    {0x0102'1997, "9p"},                              // virtual machines, WSL, gVisor
    {0x00c3'6400, "Ceph"},     {0x0bd0'0bd0, "Lustre"}, {0x4750'4653, "GPFS"},  // now IBM Storage Scale
    {0x1983'0326, "BeeGFS"},   {0x1803'1977, "WekaFS"}, {0xaad7'aaea, "PanFS"},     {0x2003'0528, "OrangeFS"},
    {0x5346'414f, "AFS"},  // OpenAFS
    {0x6b41'4653, "AFS"},  // the kernel's own
    {0x7375'7245, "Coda"},     {0x0000'564c, "NCP"},    {0x7461'636f, "OCFS2"},     {0x0116'1970, "GFS2"},
    {0xbeef'dead, "StorNext"}, {0x786f'4256, "vboxsf"}, {0x7c7c'6673, "Parallels"},
};

}  // namespace

std::string_view remote_file_system(std::uint32_t magic) noexcept {
    for (const FileSystem& system : remote)
        if (system.magic == magic) return system.name;
    return {};
}

}  // namespace safemap::SAFEMAP_ABI::io
