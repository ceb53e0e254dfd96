#include "stages/plan/gathering.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/plan/replicas.hpp"
#include "core/plan/source_proof.hpp"

namespace reshard {

std::vector<std::uint32_t> files_behind(Catalog const& source, std::uint32_t file) {
  if (file < source.real_files()) return {file};
  return files_of(source.views[file - source.real_files()]);
}

void each_gathered_part(Model const& model, Catalog const& source, TensorId tensor,
                        std::span<Piece const> to,
                        std::function<void(std::size_t, GatheredPart)> const& use) {
  Distinct const from = distinct_pieces(source.tensors[index(tensor)], source);
  auto const size = static_cast<Index>(element_bytes(from, source, model.tensor(tensor).name));
  std::vector<AxisId> order;
  for (LogicalAxis const& axis : model.tensor(tensor).axes) order.push_back(axis.axis);
  Join const joined = join(from.made(), to, order, model.axes());
  for (std::size_t o = 0; o < joined.overlaps.size(); ++o) {
    Overlap const& overlap = joined.overlaps[o];
    Blob const& blob = source.blobs[from.blob(overlap.src)];
    GatheredPart part{blob.file,
                      blob.offset_bytes + static_cast<std::uint64_t>(overlap.src_offset * size),
                      overlap.dst_offset,
                      {}};
    merge(joined.span_of(o), part.dims);
    use(overlap.dst, std::move(part));
  }
}

void finish_gathering(GatheredTensor& tensor, Catalog const& source, std::string_view name) {
  std::ranges::sort(tensor.parts, {}, &GatheredPart::first);
  Index held = 0;
  std::set<std::uint32_t> files;
  for (GatheredPart const& part : tensor.parts) {
    Index elements = 1;
    for (CopyDim const& dim : part.dims) elements *= dim.count;
    held += elements;
    for (std::uint32_t const file : files_behind(source, part.file)) files.insert(file);
  }
  RESHARD_EXPECT(held == checked_volume(tensor.shape, ErrorKind::source, name));
  tensor.files.assign(files.begin(), files.end());
}

}  // namespace reshard
