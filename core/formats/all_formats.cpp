#include "core/formats/dcp/source.hpp"
#include "core/formats/deepspeed/source.hpp"
#include "core/formats/format.hpp"
#include "core/formats/fsdp_ranks/source.hpp"
#include "core/formats/hdf5/source.hpp"
#include "core/formats/huggingface/source.hpp"
#include "core/formats/megatron/source.hpp"
#include "core/formats/mistral/source.hpp"

namespace reshard {

std::span<Format const* const> all_formats() {
  static megatron::MegatronFormat const megatron;
  static huggingface::HuggingFaceFormat const huggingface;
  static mistral::MistralFormat const mistral;
  static dcp::DcpFormat const plain_dcp(dcp::Flavour::plain);
  static dcp::DcpFormat const torch_dist(dcp::Flavour::torch_dist);
  static dcp::DcpFormat const fsdp_dtensor(dcp::Flavour::fsdp_dtensor);
  static hdf5::Hdf5Format const hdf5;
  static deepspeed::DeepSpeedFormat const deepspeed;
  static fsdp_ranks::FsdpRanksFormat const fsdp_ranks;
  static Format const* const formats[] = {&megatron,   &huggingface,  &mistral,
                                          &torch_dist, &fsdp_dtensor, &plain_dcp,
                                          &hdf5,       &deepspeed,    &fsdp_ranks};
  return formats;
}

}  // namespace reshard
