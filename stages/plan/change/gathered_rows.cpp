#include "stages/plan/change/gathered_rows.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/plan/digest_work.hpp"
#include "core/plan/replicas.hpp"

namespace reshard {

std::shared_ptr<GatheredTensor const> gathered_rows(Model const& model, Catalog const& catalog,
                                                    TensorId tensor, std::vector<Index> shape) {
  auto result = std::make_shared<GatheredTensor>();
  TensorPieces const& pieces = catalog.tensors[index(tensor)];
  result->dtype = catalog.blobs[pieces.blob(0)].dtype;
  result->shape = std::move(shape);
  Distinct const from = distinct_pieces(pieces, catalog);
  auto const size = static_cast<Index>(element_bytes(from, catalog, model.tensor(tensor).name));
  std::vector<AxisId> order;
  for (LogicalAxis const& one : model.tensor(tensor).axes) order.push_back(one.axis);
  Join const joined = join(from.made(), logical_pieces(model, tensor), order, model.axes());
  std::set<std::uint32_t> files;
  for (std::size_t o = 0; o < joined.overlaps.size(); ++o) {
    Overlap const& overlap = joined.overlaps[o];
    Blob const& blob = catalog.blobs[from.blob(overlap.src)];
    GatheredPart part{blob.file,
                      blob.offset_bytes + static_cast<std::uint64_t>(overlap.src_offset * size),
                      overlap.dst_offset,
                      {}};
    merge(joined.span_of(o), part.dims);
    result->parts.push_back(std::move(part));
    if (blob.file < catalog.real_files())
      files.insert(blob.file);
    else
      for (std::uint32_t const file : files_of(catalog.views[blob.file - catalog.real_files()]))
        files.insert(file);
  }
  std::ranges::sort(result->parts, {}, &GatheredPart::first);
  result->files.assign(files.begin(), files.end());
  return result;
}

}  // namespace reshard
