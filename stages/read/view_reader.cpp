#include "stages/read/view_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/base/tables/counted.hpp"
#include "core/quant/cast.hpp"
#include "core/quant/convert.hpp"

namespace reshard {
namespace {

constexpr Index slice_bytes = Index{1} << 20;
/// How much of scales or zero points is read at once.
constexpr Index window_bytes = Index{1} << 18;

Index element_bytes(DType dtype) { return bits(dtype) / 8; }

}  // namespace

void ViewReader::read(std::size_t view, std::uint64_t offset_bytes, std::span<std::byte> into) {
  RESHARD_EXPECT(view < views_.size());
  auto const size = static_cast<std::uint64_t>(element_bytes(views_[view].dtype));
  RESHARD_EXPECT(offset_bytes % size == 0 && into.size() % size == 0);
  auto const first = static_cast<Index>(offset_bytes / size);
  auto const count = static_cast<Index>(into.size() / size);
  RESHARD_EXPECT(first + count <= elements_of(views_[view]));
  if (views_[view].kind == ViewKind::dequantise)
    dequantise(view, first, count, into.data());
  else if (views_[view].gathered || views_[view].kind == ViewKind::rows)
    gather(view, first, count, into.data());
  else if (views_[view].kind == ViewKind::merge)
    merge(views_[view], first, count, into.data());
  else if (!views_[view].averaged.empty())
    average(views_[view], first, count, into.data());
  else
    convert(views_[view], first, count, into.data());
}

void ViewReader::read_bytes(StoredPlace const& place, std::uint64_t offset_bytes,
                            std::span<std::byte> into) {
  files_.open(place.file)->read_at(place.offset_bytes + offset_bytes, into);
  if (observer_) observer_(place.file, place.offset_bytes + offset_bytes, into);
  stats_.bytes += into.size();
  stats_.calls += 1;
}

void ViewReader::gather(std::size_t number, Index first, Index count, std::byte* into) {
  SourceView const& view = views_[number];
  if (view.kind == ViewKind::sizes) {
    std::memcpy(into, view.gathered->shape.data() + first,
                static_cast<std::size_t>(count) * sizeof(Index));
    return;
  }
  if (view.kind == ViewKind::second) {
    float const scale = encoder_.second(view);
    std::memcpy(into, &scale, sizeof scale);
    return;
  }
  if (view.kind == ViewKind::gather) return gatherer_.gather(*view.gathered, first, count, into);
  auto const special = view.kind == ViewKind::rows     ? row_mean_.fill(view, first, count, into)
                       : view.kind == ViewKind::encode ? encoder_.codes(view, first, count, into)
                                                       : encoder_.scales(view, first, count, into);
  if (special)
    fail_inexact(view, files_.path(view.gathered->files.front()).string(),
                 static_cast<Index>(special->element), special->value);
}

/// Of a file, or of a view, which is read as such.
void ViewReader::read_parts(std::uint32_t file, std::uint64_t offset_bytes,
                            std::span<iovec const> parts) {
  bool const computed = file >= files_.size();
  if (!computed) {
    files_.open(file)->read_parts_at(offset_bytes, parts);
    stats_.calls += 1;
  }
  for (iovec const& part : parts) {
    std::span const bytes(static_cast<std::byte*>(part.iov_base), part.iov_len);
    if (computed)
      read(file - files_.size(), offset_bytes, bytes);
    else if (observer_)
      observer_(file, offset_bytes, bytes);
    if (!computed) stats_.bytes += bytes.size();
    offset_bytes += bytes.size();
  }
}

void ViewReader::convert(SourceView const& view, Index first, Index count, std::byte* into) {
  Index const stored_size = element_bytes(view.stored.dtype);
  Index const size = element_bytes(view.dtype);
  double const constant = view.kind == ViewKind::add ? view.constant : 0;
  for (Index done = 0; done < count;) {
    Index const part = std::min(count - done, slice_bytes / stored_size);
    slice_.resize(static_cast<std::size_t>(part * stored_size));
    read_bytes(view.stored, static_cast<std::uint64_t>((first + done) * stored_size), slice_);
    std::span const to(into + done * size, static_cast<std::size_t>(part * size));
    done += part;
    if (view.kind == ViewKind::round) {
      quant::round_values(slice_, view.dtype, to);
      continue;
    }
    auto const inexact =
        view.kind == ViewKind::to_dtype
            ? quant::cast_values(view.stored.dtype, slice_, view.constant, view.dtype, to)
            : quant::convert(view.stored.dtype, slice_, constant, view.dtype, to);
    if (inexact)
      fail_inexact(view, files_.path(view.stored.file).string(),
                   first + done - part + static_cast<Index>(inexact->element), inexact->value);
  }
}

void ViewReader::read_f32(StoredPlace const& place, Index first, std::span<float> into) {
  auto const size = static_cast<std::size_t>(element_bytes(place.dtype));
  slice_.resize(into.size() * size);
  read_bytes(place, static_cast<std::uint64_t>(first) * size, slice_);
  quant::cast_values(place.dtype, slice_, 0, DType::f32, std::as_writable_bytes(into));
}

void ViewReader::check_infinite(SourceView const& view, Index element) {
  std::array<float, 1> value{};
  std::vector<StoredPlace> places{view.stored};
  places.insert(places.end(), view.averaged.begin(), view.averaged.end());
  for (StoredPlace const& place : places) {
    read_f32(place, element, value);
    if (!std::isfinite(value.front())) return;
  }
  fail(ErrorKind::source,
       "{}: '{}': element {}: the sum of {} is beyond F32. Leave a checkpoint out of "
       "source.average.",
       files_.path(view.stored.file).string(), view.name, element,
       counted(places.size(), "checkpoint"));
}

void ViewReader::average(SourceView const& view, Index first, Index count, std::byte* into) {
  Index const size = element_bytes(view.dtype);
  auto const terms = static_cast<float>(1 + view.averaged.size());
  for (Index done = 0; done < count;) {
    Index const part = std::min<Index>(count - done, slice_bytes / sizeof(float));
    sums_.resize(static_cast<std::size_t>(part));
    terms_.resize(static_cast<std::size_t>(part));
    read_f32(view.stored, first + done, sums_);
    for (StoredPlace const& other : view.averaged) {
      read_f32(other, first + done, terms_);
      for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += terms_[i];
    }
    for (std::size_t i = 0; i < sums_.size(); ++i)
      if (std::isinf(sums_[i])) check_infinite(view, first + done + static_cast<Index>(i));
    for (float& sum : sums_) sum /= terms;
    std::span const to(into + done * size, static_cast<std::size_t>(part * size));
    if (auto const inexact = quant::cast_values(DType::f32, std::as_bytes(std::span(sums_)),
                                                view.constant, view.dtype, to))
      fail_inexact(view, files_.path(view.stored.file).string(),
                   first + done + static_cast<Index>(inexact->element), inexact->value);
    done += part;
  }
}

void ViewReader::merge(SourceView const& view, Index first, Index count, std::byte* into) {
  Index const size = element_bytes(view.dtype);
  for (Index done = 0; done < count;) {
    Index const part = std::min(count - done, slice_bytes / size);
    std::span const to(into + done * size, static_cast<std::size_t>(part * size));
    read_bytes(view.stored, static_cast<std::uint64_t>((first + done) * size), to);
    merger_.merge(view, first + done, to);
    done += part;
  }
}

/// The needed elements of a tensor other than the codes. A read continues after them, because the
/// next slice needs the next ones.
std::span<std::byte const> ViewReader::taken(std::optional<StoredPlace> const& place,
                                             quant::FlatRange const& range, Window& window) {
  if (range.begin == range.end) return {};
  Index const size = element_bytes(place->dtype);
  if (range.begin < window.range.begin || range.end > window.range.end) {
    Index const end = std::min(std::max(range.end, range.begin + window_bytes / size),
                               checked_volume(place->shape, ErrorKind::source, "a scale"));
    window.bytes.resize(static_cast<std::size_t>((end - range.begin) * size));
    read_bytes(*place, static_cast<std::uint64_t>(range.begin * size), window.bytes);
    window.range = {range.begin, end};
  }
  return std::span(window.bytes)
      .subspan(static_cast<std::size_t>((range.begin - window.range.begin) * size),
               static_cast<std::size_t>((range.end - range.begin) * size));
}

void ViewReader::check_groups(SourceView const& view, std::span<std::byte const> groups) {
  Index const blocks = quant::is_transposed(view.scheme.order) ? opened_->decoder.scale_rows()
                                                               : opened_->decoder.scale_columns();
  for (std::size_t i = 0; i < groups.size() / sizeof(std::int32_t); ++i) {
    std::int32_t group = 0;
    std::memcpy(&group, groups.data() + i * sizeof group, sizeof group);
    if (group < 0 || group >= blocks)
      fail(ErrorKind::source,
           "{}: '{}': the group of its input {} is {}, and there are scales of {}. Compare the "
           "files with the original.",
           files_.path(view.groups->file).string(), view.name, i, group,
           counted(static_cast<std::size_t>(blocks), "group"));
  }
}

void ViewReader::run_part(SourceView const& view, quant::RowPart const& part,
                          std::span<std::byte> into) {
  quant::Needs const needs = opened_->decoder.needs_of(part);
  quant::StoredBytes stored;
  stored.scales = taken(view.scale, needs.scales, opened_->scales);
  stored.seconds = taken(view.second, needs.seconds, opened_->seconds);
  stored.zero_points = taken(view.zero_points, needs.zero_points, opened_->zero_points);
  stored.factors = taken(view.factors, needs.factors, opened_->factors);
  if (view.groups && opened_->groups.bytes.empty()) {
    stored.groups = taken(view.groups, needs.groups, opened_->groups);
    check_groups(view, stored.groups);
  }
  stored.groups = taken(view.groups, needs.groups, opened_->groups);
  quant::FlatRange const& codes = needs.code_bytes;
  slice_.resize(static_cast<std::size_t>(codes.end - codes.begin));
  read_bytes(view.stored, static_cast<std::uint64_t>(codes.begin), slice_);
  stored.codes = slice_;
  opened_->decoder.run(part, stored, into);
}

void ViewReader::dequantise(std::size_t number, Index first, Index count, std::byte* into) {
  SourceView const& view = views_[number];
  if (!opened_ || opened_->view != number)
    opened_.emplace(Opened{number, dequantiser_of(view), {}, {}, {}, {}, {}});
  Index const columns = opened_->decoder.shape().columns;
  Index const slice_rows = slice_bytes / std::max<Index>(opened_->decoder.row_bytes(), 1);
  Index const slice_columns = slice_bytes * 8 / quant::code_bits(view.scheme);
  Index const size = element_bytes(view.dtype);
  for (Index done = 0; done < count;) {
    quant::RowPart const part =
        quant::leading_part(columns, first + done, count - done, slice_rows, slice_columns);
    Index const elements = part.rows * part.columns;
    run_part(view, part, {into + done * size, static_cast<std::size_t>(elements * size)});
    done += elements;
  }
}

}  // namespace reshard
