#include "pipeline/verify/look_at_masters.hpp"

#include "core/io/file_set.hpp"
#include "stages/read/extent_reader.hpp"

namespace reshard {

MasterFindings look_at_masters(Checkpoint const& checkpoint, Model const& model,
                               Catalog const& catalog, StateCheck const& check) {
  FileSet files(checkpoint.files, FileSet::Access::read);
  ExtentReader reader(files, catalog.views);
  return compare_masters(model, catalog, check,
                         [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
                           Extent const extent{file, offset, into.size(), 0};
                           reader.read({&extent, 1}, into.data());
                         });
}

}  // namespace reshard
