#include "stages/read/look_at_objects.hpp"

#include <algorithm>
#include <cstring>

#include "core/io/file_set.hpp"

namespace reshard {
namespace {

/// Most objects have nothing to say, so only the others are sent.
void pack(std::string& out, std::uint64_t number, dcp::ObjectLook const& look) {
  std::uint64_t const words[] = {number, look.found.foreign ? 1U : 0U, look.found.name.size(),
                                 look.damage.size()};
  out.append(reinterpret_cast<char const*>(words), sizeof words);
  out += look.found.name;
  out += look.damage;
}

void unpack(std::vector<dcp::ObjectLook>& looks, std::string const& packed) {
  for (std::size_t at = 0; at < packed.size();) {
    std::uint64_t words[4] = {};
    RESHARD_EXPECT(packed.size() - at >= sizeof words);
    std::memcpy(words, packed.data() + at, sizeof words);
    at += sizeof words;
    RESHARD_EXPECT(words[0] < looks.size() && words[2] <= packed.size() - at &&
                   words[3] <= packed.size() - at - words[2]);
    looks[words[0]] = {.found = {packed.substr(at, words[2]), words[1] != 0},
                       .damage = packed.substr(at + words[2], words[3])};
    at += words[2] + words[3];
  }
}

}  // namespace

void look_at_objects(SourceCheckpoint& source, Comm const& comm) {
  if (!source.dcp || source.dcp->metadata.objects.empty()) return;
  auto const& objects = source.dcp->metadata.objects;
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const first_of = [&](std::size_t rank) {
    return objects.size() / ranks * rank + std::min(rank, objects.size() % ranks);
  };
  std::string mine;
  together(comm, [&] {
    FileSet files(source.files, FileSet::Access::read);
    auto const rank = static_cast<std::size_t>(comm.rank());
    for (std::size_t i = first_of(rank); i < first_of(rank + 1); ++i) {
      dcp::ObjectLook const look =
          dcp::look_at_object(files.open(objects[i].item.file)->file(), objects[i].item);
      if (look.found || !look.damage.empty()) pack(mine, i, look);
    }
  });
  std::vector<dcp::ObjectLook> looks(objects.size());
  for (std::string const& packed : comm.all_gather(mine)) unpack(looks, packed);
  source.dcp->looks = std::move(looks);
}

}  // namespace reshard
