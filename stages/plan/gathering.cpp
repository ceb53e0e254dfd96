#include "stages/plan/gathering.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/plan/equal/replicas.hpp"
#include "core/plan/equal/source_proof.hpp"

namespace reshard {
namespace {

double bytes_behind(Catalog const& source, SourceView const& view);

double stored_bytes(StoredPlace const& place) {
  double bytes = bits(place.dtype) / 8.0;
  for (Index const extent : place.shape) bytes *= static_cast<double>(extent);
  return bytes;
}

double bytes_behind(Catalog const& source, GatheredTensor const& tensor) {
  double all = 0;
  for (GatheredPart const& part : tensor.parts) {
    double bytes = bits(tensor.dtype) / 8.0;
    for (CopyDim const& dim : part.dims) bytes *= static_cast<double>(dim.count);
    if (part.file >= source.real_files()) {
      SourceView const& view = source.views[part.file - source.real_files()];
      auto const size = static_cast<double>(elements_of(view)) * bits(view.dtype) / 8.0;
      bytes *= size > 0 ? bytes_behind(source, view) / size : 1;
    }
    all += bytes;
  }
  return all;
}

double bytes_behind(Catalog const& source, SourceView const& view) {
  auto const elements = static_cast<double>(elements_of(view));
  switch (view.kind) {
    case ViewKind::scales:  // read with the codes
    case ViewKind::second:
    case ViewKind::sizes: return 0;
    case ViewKind::gather: return bytes_behind(source, *view.gathered);
    case ViewKind::encode: return bytes_behind(source, *view.gathered) * (view.joined ? 2 : 1);
    case ViewKind::rows: return view.gathered ? bytes_behind(source, *view.gathered) : 0;
    case ViewKind::dequantise: {
      double bytes = 0;
      for (StoredPlace const& place : places_of(view)) bytes += stored_bytes(place);
      return bytes;
    }
    default: break;
  }
  double bytes = elements * bits(view.stored.dtype) / 8.0;
  for (StoredPlace const& other : view.averaged) bytes += elements * bits(other.dtype) / 8.0;
  return bytes;
}

}  // namespace

void count_behind_views(Plan& plan, Catalog const& source) {
  if (source.views.empty()) return;
  std::set<std::uint32_t> views;
  for (TensorPieces const& tensor : source.tensors)
    if (!tensor.empty())
      for (std::uint32_t const blob : distinct_pieces(tensor, source).blobs())
        if (std::uint32_t const file = source.blobs[blob].file; file >= source.real_files())
          views.insert(file - static_cast<std::uint32_t>(source.real_files()));
  auto bytes = static_cast<double>(plan.source_bytes);
  for (std::uint32_t const number : views) {
    SourceView const& view = source.views[number];
    bytes += bytes_behind(source, view) -
             static_cast<double>(elements_of(view)) * bits(view.dtype) / 8.0;
  }
  plan.source_bytes = bytes > 0 ? static_cast<std::uint64_t>(bytes + 0.5) : 0;
}

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
