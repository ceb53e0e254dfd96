#include "stages/read/look_at_objects.hpp"

#include <algorithm>

#include "core/base/text/wire.hpp"
#include "core/io/file_set.hpp"

namespace reshard {
namespace {

/// Only objects with findings are sent, as most have none.
void pack(WireWriter& out, std::uint64_t number, dcp::ObjectLook const& look) {
  out.number(number).put(look.found.foreign).text(look.found.name).text(look.damage);
}

void unpack(std::vector<dcp::ObjectLook>& looks, std::string const& packed) {
  for (WireReader in(packed, "what a rank found in objects"); !in.empty(); in.check()) {
    std::uint64_t const number = in.number();
    bool const foreign = in.get<bool>();
    std::string_view const name = in.text();
    std::string_view const damage = in.text();
    RESHARD_EXPECT(number < looks.size());
    looks[number] = {.found = {std::string(name), foreign}, .damage = std::string(damage)};
  }
}

}  // namespace

void look_at_objects(Checkpoint& source, Comm const& comm) {
  auto const& objects = source.stored.objects;
  if (objects.empty()) return;
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const first_of = [&](std::size_t rank) {
    return objects.size() / ranks * rank + std::min(rank, objects.size() % ranks);
  };
  WireWriter mine;
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
  for (std::string const& packed : comm.all_gather(mine.bytes())) unpack(looks, packed);
  source.chunked.looks = std::move(looks);
}

}  // namespace reshard
